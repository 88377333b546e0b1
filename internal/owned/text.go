package owned

import "reflect"

// MostText returns how many bytes a statement may have into whose text the driver of a connection writes the arguments,
// as go-sql-driver does with interpolateParams; it has both settings in unexported fields. It prepares a larger statement.
// MostText is 0 if the driver prepares every statement that has arguments, or does not reveal what it does.
func MostText(c any) (bytes int) {
	layers(c, func(c any) (found bool) {
		v := reflect.ValueOf(c)
		if v.Kind() != reflect.Pointer || v.IsNil() || v.Type().String() != "*mysql.mysqlConn" {
			return false
		}
		config, limit := reflect.Indirect(v.Elem().FieldByName("cfg")), v.Elem().FieldByName("maxAllowedPacket")
		if config.Kind() != reflect.Struct || !limit.IsValid() || !limit.CanInt() {
			return true
		}
		if on := config.FieldByName("InterpolateParams"); on.Kind() == reflect.Bool && on.Bool() {
			bytes = int(limit.Int())
		}
		return true
	})
	return bytes
}
