package owned

import (
	"net"
	"reflect"
)

// socketOf returns the network connection of a driver that gives COMMIT and ROLLBACK no context, so that nothing else ends
// them while the server is silent: that of go-sql-driver, which has it in an unexported field. It is nil if there is none.
func socketOf(c any) (socket net.Conn) {
	layers(c, func(c any) (found bool) {
		v := reflect.ValueOf(c)
		if v.Kind() != reflect.Pointer || v.IsNil() || v.Type().String() != "*mysql.mysqlConn" {
			return false
		}
		if f := v.Elem().FieldByName("netConn"); f.IsValid() && f.Type() == reflect.TypeFor[net.Conn]() {
			socket = *(*net.Conn)(f.Addr().UnsafePointer()) //nolint:gosec // it has the type, and is set once, before anybody gets the connection
		}
		return true
	})
	return socket
}
