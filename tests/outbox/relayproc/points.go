package relayproc

import (
	"context"
	"strings"

	"github.com/millrace-go/millrace/tests/faults"
)

// before reaches the points that come before a statement.
func (r *relay) before(_ context.Context, call string) error {
	if strings.HasPrefix(call, r.sql.SelectKey) { // it may be for several
		if r.freed.Load() {
			r.reach(BeforeRelease)
		}
		return nil
	}
	switch call {
	case r.sql.BeatRelay, r.sql.CountExpired, r.sql.SelectLayout, r.sql.SelectShards, r.sql.SelectRelays:
		r.askForLease()
	}
	switch call {
	case r.sql.ListKeys:
		r.reach(BeforeLoad)
	case r.sql.DeleteSent:
		r.reach(BeforeWriteOff)
	case r.sql.SwitchLayout:
		r.replaces.Store(true)
	case faults.Commit:
		if r.replaces.Load() {
			r.reach(MidReplace)
		}
	case r.sql.BeatRelay:
		r.reach(BeforeBeat)
	case r.sql.FreeShards:
		r.reach(BeforeLeave)
	}
	return nil
}

// after reaches the points that come after a statement.
func (r *relay) after(_ context.Context, call string) error {
	switch call {
	case faults.Commit:
		if r.replaces.CompareAndSwap(true, false) {
			r.reach(AfterReplace)
		}
	case r.sql.InsertRelay:
		r.reach(AfterJoin)
	case r.sql.ClaimShards:
		r.reach(AfterClaim)
	case r.sql.SelectPending:
		r.reach(AfterRead)
	case r.sql.HoldBack:
		if r.headed.CompareAndSwap(true, false) { // else there is much of a key, or another relay left it
			r.reach(AfterHold)
		}
	case r.sql.SetAside, r.sql.Postpone:
		r.headed.Store(true)
		r.tried.Store(true)
		r.reach(AfterPostpone)
	case r.sql.DeleteSent:
		r.freed.Store(r.tried.Load())
		r.reach(AfterWriteOff)
	case r.sql.BeatRelay:
		r.reach(AfterBeat)
	case r.sql.FreeShards:
		r.reach(MidLeave)
	}
	return nil
}
