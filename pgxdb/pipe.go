package pgxdb

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-go/millrace/internal/flight"
)

// statement is one that a pipe sends.
type statement struct {
	sql  string
	args []any
	late *flight.Late                 // nil unless it waited for COMMIT
	plan *pgconn.StatementDescription // nil if it is not prepared
}

// pipe sends several statements in one flight. It belongs to a connection of pgx for as long as that lives.
type pipe struct {
	conn     *pgx.Conn
	prepares bool
	tracer   pgx.QueryTracer // nil if there is none
	plans    map[string]*pgconn.StatementDescription
	order    []string // the keys of plans, the oldest first
	number   int      // of plans so far
	args     []pgx.ExtendedQueryBuilder
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

// prepare prepares s, unless that was done before or pgx is configured not to.
func (p *pipe) prepare(ctx context.Context, s *statement) error {
	if !p.prepares || s.plan != nil {
		return nil
	}
	key := s.text()
	if s.plan = p.plans[key]; s.plan != nil {
		return nil
	}
	p.number++
	plan, err := p.conn.Prepare(ctx, fmt.Sprintf("millrace_%d", p.number), key)
	if err != nil {
		return err
	}
	if p.plans == nil {
		p.plans = make(map[string]*pgconn.StatementDescription)
	}
	p.plans[key], p.order, s.plan = plan, append(p.order, key), plan
	return nil
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

// text returns the statement as it is sent: where the number of rows decides, so that the server divides by zero, and
// the transaction fails, unless that many rows were changed.
func (s *statement) text() string {
	if s.late == nil || s.late.Rows == 0 {
		return s.sql
	}
	return fmt.Sprintf("WITH changed AS (%s RETURNING 1) SELECT 1 / (COUNT(*) = %d)::INTEGER FROM changed", s.sql, s.late.Rows)
}

// encode makes statements ready to be sent. If it cannot, at is the index of the statement.
func (p *pipe) encode(ctx context.Context, all []*statement) (at int, err error) {
	for len(p.order) > mostPlans { // before any of them is looked up
		if err := p.forget(ctx, p.order[0]); err != nil {
			return 0, err
		}
	}
	if len(p.args) < len(all) {
		p.args = make([]pgx.ExtendedQueryBuilder, len(all))
	}
	for at, s := range all {
		if err := p.prepare(ctx, s); err != nil {
			return at, err
		}
		if err := p.args[at].Build(p.conn.TypeMap(), s.plan, s.args); err != nil {
			return at, err
		}
	}
	return 0, nil
}

// send sends statements that are encoded, and returns the tag of the last. If one fails, at is its index.
func (p *pipe) send(ctx context.Context, all []*statement) (at int, tag pgconn.CommandTag, err error) {
	traced := p.traceStart(ctx, all)
	pipeline := p.conn.PgConn().StartPipeline(ctx)
	for i, s := range all {
		args := &p.args[i]
		if s.plan == nil {
			pipeline.SendQueryParams(s.text(), args.ParamValues, nil, args.ParamFormats, args.ResultFormats)
		} else {
			pipeline.SendQueryStatement(s.plan, args.ParamValues, args.ParamFormats, args.ResultFormats)
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
	if errors.As(err, &answer) && (answer.Code == noPlan || answer.Code == oldPlan) {
		p.plans, p.order = nil, nil
	}
	return at, tag, err
}

// traceStart tells the tracer of pgx of each statement, and returns the contexts that it made.
func (p *pipe) traceStart(ctx context.Context, all []*statement) (made []context.Context) {
	if p.tracer == nil {
		return nil
	}
	for _, s := range all {
		made = append(made, p.tracer.TraceQueryStart(ctx, p.conn, pgx.TraceQueryStartData{SQL: s.text(), Args: s.args}))
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
