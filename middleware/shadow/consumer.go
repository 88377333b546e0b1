package shadow

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace-go/millrace/inbox"
)

// consumer holds the figures of one consumer.
type consumer struct {
	name  string
	began time.Time

	mu         sync.Mutex
	deliveries int
	failures   int
	running    int           // handlers that run now
	atOnce     int           // the maximum of running
	logged     time.Duration // the time of the last log line, since the watch began
	keys       []*keyTally
	versions   []*versionTally
}

func newConsumer(name string, began time.Time, config *Config) *consumer {
	c := &consumer{name: name, began: began}
	for _, k := range config.Keys {
		c.keys = append(c.keys, &keyTally{
			key: k, isPayload: k.String() == inbox.ByPayload().String(), most: config.MaxKeys, seen: map[uint64]keySeen{},
		})
	}
	for _, by := range slices.Sorted(maps.Keys(config.Versions)) {
		c.versions = append(c.versions, &versionTally{
			name: by, of: config.Versions[by], most: config.MaxKeys, seen: map[uint64]*aggregate{},
		})
	}
	return c
}

// delivery is one delivery, from its arrival to the end of the handler. Its found fields are empty
// for what is outside of the sample.
type delivery struct {
	consumer *consumer // set when the delivery is counted
	payload  uint64
	keys     []keyed // in the order of consumer.keys
	versions []versioned
}

// keyed is the value that one of the keys has for a delivery.
type keyed struct {
	hash  uint64
	has   bool
	found string
}

// versioned is one version of a delivery, or the reason why it has none.
type versioned struct {
	tally  int // the index in consumer.versions
	hash   uint64
	number int64
	found  string
}

func (c *consumer) arrive(d *delivery) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Since(c.began)
	d.consumer = c
	c.deliveries++
	c.running++
	c.atOnce = max(c.atOnce, c.running)
	for i := range d.keys {
		k := &d.keys[i]
		if !k.has {
			k.found = foundMissing
			c.keys[i].missing++
			continue
		}
		k.found = c.keys[i].arrive(k.hash, d.payload, now)
	}
	for i := range d.versions {
		v := &d.versions[i]
		switch tally := c.versions[v.tally]; v.found {
		case foundMissing:
			tally.missing++
		case foundInvalid:
			tally.invalid++
		default:
			v.found = tally.arrive(v.hash, v.number, now)
		}
	}
}

// leave counts the end of the handler and reports whether it is time to log.
func (c *consumer) leave(d *delivery, succeeded bool, logEvery time.Duration) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Since(c.began)
	c.running--
	if !succeeded {
		c.failures++
	}
	for i, k := range d.keys {
		if k.has {
			c.keys[i].leave(k.hash, succeeded)
		}
	}
	for _, v := range d.versions {
		copyFailed := v.found == foundRepeated && !succeeded // another delivery handled the version, or will tell that it failed
		if v.found != foundMissing && v.found != foundInvalid && !copyFailed {
			c.versions[v.tally].leave(v.hash, v.number, succeeded)
		}
	}
	if now-c.logged < logEvery {
		return false
	}
	c.logged = now
	return true
}

// tell calls say with the finding of each key and each version.
func (d *delivery) tell(say func(by, found string)) {
	for i, k := range d.keys {
		if k.found != "" {
			say(d.consumer.keys[i].key.String(), k.found)
		}
	}
	for _, v := range d.versions {
		if v.found != "" {
			say(versionLabel+d.consumer.versions[v.tally].name, v.found)
		}
	}
}

// versionLabel distinguishes a version from a key of the same name.
const versionLabel = "version:"

// usable returns an error if no gate could use these versions.
func usable(versions []inbox.Version) error {
	if len(versions) == 0 {
		return inbox.ErrNoVersion
	}
	for i, v := range versions {
		if v.Aggregate == "" {
			return inbox.ErrNoVersion
		}
		twice := slices.ContainsFunc(versions[:i], func(o inbox.Version) bool { return o.Aggregate == v.Aggregate })
		if v.Number < 0 || twice {
			return errUnusable
		}
	}
	return nil
}

var errUnusable = errors.New("no gate could use the version")

func whyNot(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, inbox.ErrNoVersion):
		return foundMissing
	default:
		return foundInvalid
	}
}
