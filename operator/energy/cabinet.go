package energy

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

const (
	// mostShard is how much one ConfigMap holds; the API server takes 1 MiB.
	mostShard = 700 << 10
	// plainValue is up to where a value is kept as text; larger ones are packed.
	plainValue = 4 << 10
	// mostValue bounds what a packed value may grow to.
	mostValue = 64 << 20

	cabinetVersion = "1"
	component      = "signals"
)

// Keys of a ConfigMap beside the values: their sequence tells which of two that
// have one key was written later, the writer whose it is.
const (
	keyVersion  = "version"
	keySequence = "sequence"
	keyWriter   = "writer"
)

// errSuperseded says that another writes, be it an engine or a person.
var errSuperseded = errors.New("another writer has taken over")

// errGone says that somebody deleted what was kept.
var errGone = errors.New("a ConfigMap of the signals' state is gone")

// cabinet keeps named values in as many ConfigMaps as they need. It is used by one
// goroutine at a time.
type cabinet struct {
	client client.Client
	reader client.Reader
	log    interface{ Warn(string, ...any) }

	federation types.NamespacedName
	owner      metav1.OwnerReference
	writer     string
	limit      int // bytes of one ConfigMap

	shards   []*corev1.ConfigMap // as last seen
	place    map[string]int
	sequence uint64
}

func newCabinet(c client.Client, r client.Reader, f *v1alpha1.Federation, writer string, log interface{ Warn(string, ...any) }) *cabinet {
	return &cabinet{client: c, reader: r, log: log, federation: client.ObjectKeyFromObject(f), writer: writer, limit: mostShard, place: map[string]int{},
		owner: metav1.OwnerReference{APIVersion: v1alpha1.APIVersion, Kind: v1alpha1.KindFederation, Name: f.Name, UID: f.UID}}
}

func (c *cabinet) name(shard int) string {
	name := c.federation.Name + "-signals"
	if shard > 0 {
		name += "-" + strconv.Itoa(shard)
	}
	return name
}

// load reads everything and claims it: whoever writes next without having read
// this has been superseded.
func (c *cabinet) load(ctx context.Context) (map[string][]byte, error) {
	c.shards, c.place, c.sequence = nil, map[string]int{}, 0
	for shard := 0; ; shard++ {
		m := &corev1.ConfigMap{}
		err := c.reader.Get(ctx, types.NamespacedName{Namespace: c.federation.Namespace, Name: c.name(shard)}, m)
		if apierrors.IsNotFound(err) {
			break
		}
		ours := false
		if err == nil {
			ours, err = c.accept(ctx, m)
		}
		if err != nil {
			return nil, fmt.Errorf("energy: state of %s: %w", c.federation, err)
		}
		if ours {
			c.shards = append(c.shards, m)
		}
	}
	values := map[string][]byte{}
	order := make([]int, len(c.shards)) // by sequence: later ones win
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return compareSequence(c.shards[a], c.shards[b]) })
	for _, i := range order {
		for key, v := range c.unpack(c.shards[i]) {
			values[key], c.place[key] = v, i
		}
		c.sequence = max(c.sequence, sequence(c.shards[i]))
	}
	for i := range c.shards {
		claimed := c.shards[i].DeepCopy()
		if claimed.Data[keyVersion] != cabinetVersion {
			claimed.Data, claimed.BinaryData = nil, nil
		}
		if err := c.put(ctx, i, claimed); err != nil {
			return nil, fmt.Errorf("energy: state of %s: %w", c.federation, err)
		}
	}
	return values, nil
}

// accept deletes what a federation of this name left behind, and refuses what is
// nobody's of ours.
func (c *cabinet) accept(ctx context.Context, m *corev1.ConfigMap) (ours bool, err error) {
	if m.Labels[v1alpha1.LabelFederation] != c.federation.Name {
		return false, fmt.Errorf("ConfigMap %s is in the way: it has no label %s=%s; rename or delete it", m.Name, v1alpha1.LabelFederation, c.federation.Name)
	}
	if slices.ContainsFunc(m.OwnerReferences, func(o metav1.OwnerReference) bool { return o.UID == c.owner.UID }) {
		return true, nil
	}
	err = c.client.Delete(ctx, m, client.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion})
	return false, client.IgnoreNotFound(err)
}

func sequence(m *corev1.ConfigMap) uint64 {
	n, err := strconv.ParseUint(m.Data[keySequence], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

func compareSequence(a, b *corev1.ConfigMap) int {
	switch x, y := sequence(a), sequence(b); {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// unpack gives the values of a ConfigMap; of another version's none, and they
// are overwritten.
func (c *cabinet) unpack(m *corev1.ConfigMap) map[string][]byte {
	out := map[string][]byte{}
	if v := m.Data[keyVersion]; v != cabinetVersion {
		c.log.Warn("signals' state of another version is left out", "configMap", m.Name, "version", v)
		return out
	}
	for key, v := range m.Data {
		if key != keyVersion && key != keySequence && key != keyWriter {
			out[key] = []byte(v)
		}
	}
	for key, packed := range m.BinaryData {
		v, err := unzip(packed)
		if err != nil {
			c.log.Warn("a value of the signals' state is damaged and starts anew", "configMap", m.Name, "key", key, "error", err)
			continue
		}
		out[key] = v
	}
	return out
}

func unzip(packed []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	v, err := io.ReadAll(io.LimitReader(r, mostValue+1))
	if err == nil && len(v) > mostValue {
		err = fmt.Errorf("more than %d bytes", mostValue)
	}
	return v, err
}

func zip(v []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(v) // a buffer takes all
	_ = w.Close()
	return out.Bytes()
}

// set replaces a value of a ConfigMap; nil removes it.
func set(m *corev1.ConfigMap, key string, v []byte) {
	delete(m.Data, key)
	delete(m.BinaryData, key)
	switch {
	case v == nil:
	case len(v) <= plainValue:
		if m.Data == nil {
			m.Data = map[string]string{}
		}
		m.Data[key] = string(v)
	default:
		if m.BinaryData == nil {
			m.BinaryData = map[string][]byte{}
		}
		m.BinaryData[key] = zip(v)
	}
}

func size(m *corev1.ConfigMap) int {
	n := 0
	for key, v := range m.Data {
		n += len(key) + len(v)
	}
	for key, v := range m.BinaryData {
		n += len(key) + len(v)
	}
	return n
}

func held(m *corev1.ConfigMap, key string) int {
	return len(key) + len(m.Data[key]) + len(m.BinaryData[key])
}

// write makes changes; nil removes a value. It may have done some of them when it
// returns an error; doing them again is harmless.
func (c *cabinet) write(ctx context.Context, changes map[string][]byte) error {
	next := map[int]*corev1.ConfigMap{}
	at := func(shard int) *corev1.ConfigMap {
		if next[shard] == nil {
			if shard < len(c.shards) {
				next[shard] = c.shards[shard].DeepCopy()
			} else {
				next[shard] = &corev1.ConfigMap{}
			}
		}
		return next[shard]
	}
	var gained []int // written before the others: a value that moves is never in none
	for _, key := range slices.Sorted(maps.Keys(changes)) {
		v := changes[key]
		shard, known := c.place[key]
		if v == nil {
			if known {
				set(at(shard), key, nil)
			}
			continue
		}
		if known {
			m := at(shard)
			set(m, key, v)
			if size(m) <= c.limit || held(m, key) == size(m) {
				continue
			}
			set(m, key, nil)
		}
		shard = c.room(next, key, v, at)
		set(at(shard), key, v)
		if known && !slices.Contains(gained, shard) {
			gained = append(gained, shard)
		}
	}
	// New ones first and in order: the first that is missing ends a load.
	rank := func(shard int) int {
		switch {
		case shard >= len(c.shards):
			return 0
		case slices.Contains(gained, shard):
			return 1
		}
		return 2
	}
	order := slices.Sorted(maps.Keys(next))
	slices.SortStableFunc(order, func(a, b int) int { return rank(a) - rank(b) })
	for _, shard := range order {
		if err := c.put(ctx, shard, next[shard]); err != nil {
			return fmt.Errorf("energy: state of %s: %w", c.federation, err)
		}
	}
	return nil
}

// room is the first ConfigMap into which a value fits.
func (c *cabinet) room(next map[int]*corev1.ConfigMap, key string, v []byte, at func(int) *corev1.ConfigMap) int {
	var probe corev1.ConfigMap
	set(&probe, key, v)
	need := size(&probe)
	for shard := 0; ; shard++ {
		if shard >= len(c.shards) && next[shard] == nil {
			return shard
		}
		if size(at(shard))+need <= c.limit {
			return shard
		}
	}
}

// put writes one ConfigMap, if it is the one that was last seen.
func (c *cabinet) put(ctx context.Context, shard int, m *corev1.ConfigMap) error {
	isNew := shard >= len(c.shards)
	if !isNew && c.same(shard, m) {
		return nil
	}
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	c.sequence++
	m.Data[keyVersion], m.Data[keyWriter], m.Data[keySequence] = cabinetVersion, c.writer, strconv.FormatUint(c.sequence, 10)
	var err error
	if isNew {
		m.Namespace, m.Name = c.federation.Namespace, c.name(shard)
		m.OwnerReferences = []metav1.OwnerReference{c.owner}
		m.Labels = map[string]string{
			v1alpha1.LabelFederation: c.federation.Name, "app.kubernetes.io/name": "girassol", "app.kubernetes.io/instance": c.federation.Name,
			"app.kubernetes.io/managed-by": v1alpha1.FieldOwner, "app.kubernetes.io/component": component,
		}
		err = c.client.Create(ctx, m, client.FieldOwner(v1alpha1.FieldOwner))
	} else {
		patch := client.MergeFromWithOptions(c.shards[shard], client.MergeFromWithOptimisticLock{})
		err = c.client.Patch(ctx, m, patch, client.FieldOwner(v1alpha1.FieldOwner))
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return c.contested(ctx, shard, err)
	case apierrors.IsNotFound(err) && !isNew:
		return errGone
	case err != nil:
		return err
	}
	if isNew {
		c.shards = append(c.shards, m)
	} else {
		c.shards[shard] = m
	}
	maps.DeleteFunc(c.place, func(_ string, i int) bool { return i == shard })
	for key := range m.Data {
		c.place[key] = shard
	}
	for key := range m.BinaryData {
		c.place[key] = shard
	}
	return nil
}

// same says that a write would change nothing and be no claim.
func (c *cabinet) same(shard int, m *corev1.ConfigMap) bool {
	old := c.shards[shard]
	return old.Data[keyWriter] == c.writer && maps.Equal(old.Data, m.Data) &&
		maps.EqualFunc(old.BinaryData, m.BinaryData, bytes.Equal)
}

// contested finds out who else wrote: a person's label is taken over and the
// write comes again; another's claim supersedes this one.
func (c *cabinet) contested(ctx context.Context, shard int, conflict error) error {
	live := &corev1.ConfigMap{}
	if err := c.reader.Get(ctx, types.NamespacedName{Namespace: c.federation.Namespace, Name: c.name(shard)}, live); err != nil {
		return errors.Join(conflict, err)
	}
	if live.Data[keyWriter] != c.writer {
		return fmt.Errorf("%w: ConfigMap %s was written by %s", errSuperseded, live.Name, strings.TrimSpace("writer "+live.Data[keyWriter]))
	}
	if shard < len(c.shards) {
		c.shards[shard] = live
	} else { // created, but the answer was lost
		c.shards = append(c.shards, live)
	}
	return conflict
}
