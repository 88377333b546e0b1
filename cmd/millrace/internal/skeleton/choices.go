package skeleton

import "fmt"

// All returns every service that there is, for tests.
func All(module string) (all []Service) {
	for _, database := range Databases {
		for _, broker := range Brokers {
			for flags := range 16 {
				s := Service{
					Module: module, Database: database, Broker: broker,
					Outbox: flags&1 != 0, Gate: flags&2 != 0, Queue: flags&4 != 0, Policy: flags&8 != 0,
				}
				if s.Validate() == nil {
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// Pairs returns services among which each two choices meet, for tests.
func Pairs(module string) (rows []Service) {
	services := All(module)
	met := map[string]bool{}
	for {
		best, most := 0, 0
		for i, s := range services {
			n := 0
			for _, pair := range s.pairs() {
				if !met[pair] {
					n++
				}
			}
			if n > most {
				best, most = i, n
			}
		}
		if most == 0 {
			return rows
		}
		rows = append(rows, services[best])
		for _, pair := range services[best].pairs() {
			met[pair] = true
		}
	}
}

// pairs are each two choices of s.
func (s Service) pairs() (all []string) {
	each := []string{
		s.Database, s.Broker, fmt.Sprint("outbox ", s.Outbox), fmt.Sprint("gate ", s.Gate), fmt.Sprint("queue ", s.Queue), fmt.Sprint("policy ", s.Policy),
	}
	for i, a := range each {
		for _, b := range each[:i] {
			all = append(all, a+", "+b)
		}
	}
	return all
}
