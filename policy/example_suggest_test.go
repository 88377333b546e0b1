package policy_test

import (
	"encoding/json"
	"fmt"

	"github.com/millrace-go/millrace/middleware/shadow"
	"github.com/millrace-go/millrace/policy"
)

// A report that a process has written as JSON, and the rules that it speaks for.
func ExampleSuggest() {
	var report shadow.Report
	err := json.Unmarshal([]byte(`{"consumers": [{
		"name": "billing", "watched_ns": 259200000000000, "deliveries": 50000, "keys": [
			{"key": "uuid", "sample": 1, "deliveries": 50000, "distinct": 50000},
			{"key": "metadata:\"order_id\"", "sample": 1, "deliveries": 50000, "distinct": 49000, "duplicates": 1000, "copied": 1000,
				"apart": {"median_ns": 60000000000, "p99_ns": 1800000000000, "longest_ns": 10000000000000}}
		]
	}]}`), &report)
	if err != nil {
		panic(err)
	}
	for _, c := range report.Consumers {
		fmt.Print(policy.Suggest(c))
	}
	// Output:
	// # billing: metadata:order_id recognises 2 % more of the deliveries as copies than uuid does.
	// # billing: Copies came up to 2h47m apart, 99 % of them within 30m; the window is twice that, and an hour at least.
	// # billing: It watched for 3d and has not seen what comes later: compare the window with what the broker may redeliver,
	// #   and with the age of what a dead-letter queue or a replay brings back.
	// consumers:
	//   billing:
	//     strategy: inbox
	//     key:
	//       from: metadata:order_id
	//     window: 6h
}
