package pgxdb

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/flight"
)

// pipe is the wire of a connection of pgx, for as long as that lives.
type pipe struct {
	conn     *pgx.Conn
	prepares bool
	tracer   pgx.QueryTracer // nil if there is none
	plans    map[string]*pgconn.StatementDescription
	order    []string // the keys of plans, the oldest first
	number   int      // of plans so far
	queries  []query  // that are being sent
}

const (
	pipeKey   = "github.com/millrace-go/millrace/pgxdb"
	mostPlans = 128
)

// pipeOf returns the pipe of a connection, nil if pgx is configured for another mode.
func pipeOf(c *pgx.Conn) *pipe {
	data := c.PgConn().CustomData()
	if known, is := data[pipeKey].(*pipe); is {
		return known
	}
	config := c.Config()
	var p *pipe
	switch mode := config.DefaultQueryExecMode; mode {
	case pgx.QueryExecModeCacheStatement, pgx.QueryExecModeExec:
		p = &pipe{conn: c, prepares: mode == pgx.QueryExecModeCacheStatement, tracer: config.Tracer}
	}
	data[pipeKey] = p
	return p
}

// plan prepares a statement, unless that was done before. It returns nil if pgx is configured not to.
func (p *pipe) plan(ctx context.Context, text string) (*pgconn.StatementDescription, error) {
	if !p.prepares {
		return nil, nil //nolint:nilnil // documented
	}
	known := p.plans[text]
	var name string
	if known != nil {
		name = known.Name
	} else {
		p.number++
		name = fmt.Sprintf("millrace_%d", p.number)
	}
	plan, err := p.conn.Prepare(ctx, name, text) // pgx asks the server unless it has the plan: a hook of the pool may call DeallocateAll
	if err != nil {
		return nil, err
	}
	if known == nil {
		p.order = append(p.order, text)
	}
	if p.plans == nil {
		p.plans = make(map[string]*pgconn.StatementDescription)
	}
	p.plans[text] = plan
	return plan, nil
}

func (p *pipe) forget(ctx context.Context, key string) error {
	plan := p.plans[key]
	delete(p.plans, key)
	p.order = slices.DeleteFunc(p.order, func(k string) bool { return k == key })
	return p.conn.Deallocate(ctx, plan.Name)
}

// Codes of errors.
const (
	divisionByZero = "22012"
	noPlan         = "26000" // the prepared statement is gone, after a DEALLOCATE ALL for instance
	oldPlan        = "0A000" // it may return other columns since a table was changed
)

// textOf returns the statement as it is sent: where the number of rows decides, so that the server divides by zero, and
// the transaction fails, unless that many rows were changed.
func textOf(s *flight.Statement) string {
	if s.Late == nil || s.Late.Rows == 0 {
		return s.SQL
	}
	return fmt.Sprintf("WITH changed AS (%s RETURNING 1) SELECT 1 / (COUNT(*) = %d)::INTEGER FROM changed", s.SQL, s.Late.Rows)
}

// query is a statement that is ready to be sent.
type query struct {
	text string
	plan *pgconn.StatementDescription // nil if it is not prepared
	args pgx.ExtendedQueryBuilder
}

// encode makes statements ready to be sent. If it cannot, at is the index of the statement.
func (p *pipe) encode(ctx context.Context, all []*flight.Statement) (at int, err error) {
	for len(p.order) > mostPlans { // before any of them is looked up
		if err := p.forget(ctx, p.order[0]); err != nil {
			return 0, err
		}
	}
	if len(p.queries) < len(all) {
		p.queries = make([]query, len(all))
	}
	for at, s := range all {
		q := &p.queries[at]
		q.text = textOf(s)
		if q.plan, err = p.plan(ctx, q.text); err != nil {
			return at, err
		}
		if err := q.args.Build(p.conn.TypeMap(), q.plan, s.Args); err != nil {
			return at, err
		}
	}
	return 0, nil
}

// run sends statements, and returns the tag of the last. If one cannot be sent, none is. If one fails, at is its index.
func (p *pipe) run(ctx context.Context, all []*flight.Statement) (sent bool, tag pgconn.CommandTag, at int, err error) {
	if p.conn.IsClosed() {
		return false, tag, 0, driver.ErrBadConn
	}
	if at, err = p.encode(ctx, all); err != nil {
		return false, tag, at, err
	}
	traced := p.traceStart(ctx, all)
	pipeline := p.conn.PgConn().StartPipeline(ctx)
	for i := range all {
		q := &p.queries[i]
		if q.plan == nil {
			pipeline.SendQueryParams(q.text, q.args.ParamValues, nil, q.args.ParamFormats, q.args.ResultFormats)
		} else {
			pipeline.SendQueryStatement(q.plan, q.args.ParamValues, q.args.ParamFormats, q.args.ResultFormats)
		}
	}
	if err = pipeline.Sync(); err == nil {
		at, tag, err = results(pipeline, len(all))
	}
	if closed := pipeline.Close(); err == nil && closed != nil {
		at, err = len(all)-1, closed
	}
	p.traceEnd(traced, at, tag, err) //nolint:contextcheck // the tracer made its own
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		switch late := all[at].Late; {
		case answer.Code == noPlan, answer.Code == oldPlan:
			p.plans, p.order = nil, nil
		case answer.Code == divisionByZero && late != nil && late.Rows > 0:
			err = fmt.Errorf("%w, %d: %w", flight.ErrRows, late.Rows, err)
		}
	}
	return true, tag, at, err
}

// traceStart tells the tracer of pgx of each statement, and returns the contexts that it made.
func (p *pipe) traceStart(ctx context.Context, all []*flight.Statement) (made []context.Context) {
	if p.tracer == nil {
		return nil
	}
	for _, s := range all {
		made = append(made, p.tracer.TraceQueryStart(ctx, p.conn, pgx.TraceQueryStartData{SQL: textOf(s), Args: s.Args}))
	}
	return made
}

// traceEnd tells the tracer of pgx what became of the statements. If one failed, at is its index.
func (p *pipe) traceEnd(made []context.Context, at int, tag pgconn.CommandTag, err error) {
	for i, ctx := range made {
		var end pgx.TraceQueryEndData
		if i == len(made)-1 {
			end.CommandTag = tag
		}
		if i >= at {
			end.Err = err
		}
		p.tracer.TraceQueryEnd(ctx, p.conn, end)
	}
}

// results reads the results of n statements.
func results(pipeline *pgconn.Pipeline, n int) (at int, tag pgconn.CommandTag, err error) {
	for at = range n {
		result, err := pipeline.GetResults()
		if err != nil {
			return at, tag, err
		}
		reader, is := result.(*pgconn.ResultReader)
		if !is {
			return at, tag, fmt.Errorf("pgxdb: pgx answered a statement with a %T", result)
		}
		if tag, err = reader.Close(); err != nil {
			return at, tag, err
		}
	}
	return at, tag, nil
}
