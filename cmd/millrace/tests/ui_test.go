package tests_test

import (
	"bufio"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-go/millrace/tests/testdb"
)

func TestUI(t *testing.T) {
	t.Parallel()
	testdb.Each(t, testdb.With(newShop, func(t *testing.T, s *shop) {
		cmd := command(t.Context(), s.db.DSN, "ui", "--listen", "127.0.0.1:0", "--by", "ann", "--title", "shop, test", "--color", "green")
		told, err := cmd.StderrPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(told)
		require.True(t, lines.Scan(), "it says where it is")
		_, address, found := strings.Cut(lines.Text(), "http://")
		require.True(t, found, lines.Text())
		for page, has := range map[string]string{"": "By consumer", "message?key=" + id(7): `action="message-replace"`} {
			response, err := http.Get("http://" + address + page)
			require.NoError(t, err)
			text, err := io.ReadAll(response.Body)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			assert.Equal(t, http.StatusOK, response.StatusCode)
			assert.Contains(t, string(text), "billing")
			assert.Contains(t, string(text), has)
			assert.Regexp(t, `<title>\w+ · shop, test · [^<]+ · Millrace`, string(text))
		}
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		assert.False(t, lines.Scan(), lines.Text())
		assert.NoError(t, cmd.Wait())
	}))
}

func TestUIForOthersWantsAToken(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *testdb.DB) {
		r := newShop(t, db).run("ui", "--listen", ":0")
		assert.Equal(t, 2, r.code)
		assert.Contains(t, r.err, "give a token, or listen at 127.0.0.1")
		assert.Equal(t, 2, call(t, db.DSN, "ui", "--color", "pink").code)
	})
}
