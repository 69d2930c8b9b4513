package director

import (
	"fmt"
	"time"

	"girassol.dev/signals/window"
)

// byHand is who overrides where nobody is named.
const byHand = "hand"

// Override puts a site in or out until a time that must be to come, whatever its
// electricity; demands to draw less and a spent budget still win. It counts at
// once, replaces one from before and outlives the process.
func (d *Director) Override(site string, admit bool, until time.Time, reason string) error {
	return d.SetOverride(site, window.Override{Admit: admit, Until: until, By: byHand, Why: reason})
}

// SetOverride is Override with the name of who wants it. Nothing changes if it
// returns an error: no such site, no expiry to come, or it could not be kept.
func (d *Director) SetOverride(site string, o window.Override) error {
	s, err := d.site(site)
	if err != nil {
		return err
	}
	now := d.config.Clock.Now()
	if err := o.Validate(now); err != nil {
		return fmt.Errorf("director: site %s: %w", site, err)
	}
	if !o.Until.After(now) {
		return fmt.Errorf("director: site %s: an override until %s would have ended already, it is %s",
			site, stamp(o.Until), stamp(now))
	}
	o.Until = o.Until.Round(0).UTC()
	return s.put(&o)
}

// ClearOverride lets the site's electricity decide again. It is no error if
// there was no override.
func (d *Director) ClearOverride(site string) error {
	s, err := d.site(site)
	if err != nil {
		return err
	}
	return s.put(nil)
}

// put keeps an override and makes it count.
func (s *site) put(o *window.Override) error {
	s.overriding.Lock()
	defer s.overriding.Unlock()
	if m := s.director.memory; m != nil {
		if err := m.SaveOverride(s.Name, o); err != nil {
			return fmt.Errorf("director: site %s: the override does not count, since it could not be kept: %w", s.Name, err)
		}
	}
	s.mu.Lock()
	s.override = o
	s.mu.Unlock()
	s.look()
	return nil
}

// overridden is the override that holds, nil if none does.
func (s *site) overridden(now time.Time) *window.Override {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.override == nil || !now.Before(s.override.Until) {
		return nil
	}
	o := *s.override
	return &o
}

// pressing says that something counts that needs no reading.
func (s *site) pressing(now time.Time) bool {
	blocks, _, _ := s.blocks(now)
	return s.overridden(now) != nil || len(blocks) > 0
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
