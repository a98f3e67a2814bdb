package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"

	driver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/lib/pq"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/amqpretry/watermill-retry/middleware/protect/store/sqlstore"
)

// numbered looks like an error of MySQL, and is none.
type numbered struct{ Number uint16 }

func (numbered) Error() string { return "1213" }

// Conflicts are told by the errors of each driver, however they are wrapped.
func TestIsConflict(t *testing.T) {
	inPostgres, err := sqlstore.Postgres(&sql.DB{}, sqlstore.Config{})
	require.NoError(t, err)
	inMySQL, err := sqlstore.MySQL(&sql.DB{}, sqlstore.Config{})
	require.NoError(t, err)
	other := errors.New("other")
	for name, test := range map[string]struct {
		err               error
		postgres, inMySQL bool
	}{
		"nil":                                {nil, false, false},
		"other":                              {other, false, false},
		"pgx, serialization":                 {&pgconn.PgError{Code: "40001"}, true, false},
		"pgx, deadlock":                      {&pgconn.PgError{Code: "40P01"}, true, false},
		"pgx, unique violation":              {&pgconn.PgError{Code: "23505"}, false, false},
		"lib/pq, serialization":              {&pq.Error{Code: "40001"}, true, false},
		"MySQL, deadlock":                    {&driver.MySQLError{Number: 1213}, false, true},
		"MySQL, record changed":              {&driver.MySQLError{Number: 1020}, false, true},
		"MySQL, duplicate":                   {&driver.MySQLError{Number: 1062}, false, false},
		"a nil pointer":                      {(*driver.MySQLError)(nil), false, false},
		"an error with a number of its own":  {numbered{1213}, false, false},
		"an error, and one of another layer": {errors.Join(other, &driver.MySQLError{Number: 1213}), false, true},
	} {
		assert.Equal(t, test.postgres, inPostgres.IsConflict(test.err), name)
		assert.Equal(t, test.inMySQL, inMySQL.IsConflict(test.err), name)
		if test.err != nil {
			wrapped := fmt.Errorf("cannot count: %w", errors.Join(other, test.err))
			assert.Equal(t, test.postgres, inPostgres.IsConflict(wrapped), "%s, wrapped", name)
			assert.Equal(t, test.inMySQL, inMySQL.IsConflict(wrapped), "%s, wrapped", name)
		}
	}
}
