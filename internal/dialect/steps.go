package dialect

// Steps holds the statements about what handlers do outside of their transactions.
type Steps struct {
	InsertStep string
	SelectStep string
	TakeStep   string // from an attempt that has ended
	EndStep    string
	TouchStep  string // so that it is remembered for longer

	StorySteps     string
	SelectDoubtful string

	// SelectExpired leaves out steps of messages that are open.
	SelectExpired string
	DeleteSteps   string
}

const stepColumns = `s.id, s.namespace, s.consumer, s.epoch, s.message_id, s.name, s.state, s.verified, s.token,
			s.attempts, s.started_at, s.ended_at, s.result, s.problem`
