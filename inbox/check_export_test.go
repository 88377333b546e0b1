package inbox

import "time"

// CheckSettings judges settings that no server here has.
func CheckSettings(s *Store, pool int, pooled bool, twinWait time.Duration, found map[string]string) []Finding {
	c := checkup{store: s, pool: pool, pooled: pooled, twinWait: twinWait, settings: found}
	c.judgeSettings()
	return c.findings
}
