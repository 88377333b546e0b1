package rabbitmq

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"time"
	"unicode/utf8"

	amqp091 "github.com/rabbitmq/amqp091-go"
)

// text returns the value of a header as metadata.
func text(value any) string {
	switch v := plain(value).(type) {
	case string:
		return v
	case nil:
		return ""
	case map[string]any, []any:
		// plain returns only what JSON can encode.
		encoded, err := json.Marshal(v)
		if err != nil {
			return fmt.Sprint(v)
		}
		return string(encoded)
	default:
		return fmt.Sprint(v)
	}
}

// plain turns the value of a header into strings, booleans, numbers, and lists and maps of them. A
// number that JSON does not have becomes a string.
func plain(value any) any {
	switch v := value.(type) {
	case nil, string, bool, byte, uint16, uint32, int8, int16, int, int32, int64:
		return v
	case float32:
		return number(float64(v), 32)
	case float64:
		return number(v, 64)
	case []byte:
		if utf8.Valid(v) {
			return string(v)
		}
		return base64.StdEncoding.EncodeToString(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case amqp091.Decimal:
		scale := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(v.Scale)), nil)
		return new(big.Rat).SetFrac(big.NewInt(int64(v.Value)), scale).FloatString(int(v.Scale))
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = plain(v[i])
		}
		return list
	case amqp091.Table:
		table := make(map[string]any, len(v))
		for key := range v {
			table[key] = plain(v[key])
		}
		return table
	default:
		return fmt.Sprint(v)
	}
}

func number(f float64, bits int) any {
	shortest := strconv.FormatFloat(f, 'g', -1, bits)
	if !json.Valid([]byte(shortest)) { // NaN, infinite
		return shortest
	}
	return json.Number(shortest)
}

func integer(value any) (n int64, is bool) {
	switch v := value.(type) {
	case int64:
		return v, true
	case int32:
		return int64(v), true
	case int16:
		return int64(v), true
	case int8:
		return int64(v), true
	case byte:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int:
		return int64(v), true
	}
	return 0, false
}
