package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
)

// errKilled is all that a process hears that is no more.
var errKilled = errors.New("the operator was killed")

// life of one operator: it ends right after its last write.
type life struct {
	mu sync.Mutex
	// left writes until it is killed; below 0: it lives on.
	left   int
	killed bool
	ended  chan struct{}
}

func newLife(writes int) *life { return &life{left: writes, ended: make(chan struct{})} }

func (l *life) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.killed
}

// write does one write, and dies after it if it was the last.
func (l *life) write(do func() error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.killed {
		return errKilled
	}
	err := do()
	if l.left > 0 {
		if l.left--; l.left == 0 {
			l.killed = true
			close(l.ended)
		}
	}
	return err
}

func (l *life) read(do func() error) error {
	if l.over() {
		return errKilled
	}
	return do()
}

// recording is a client that notes in the journal what is written, and that stops
// working when its life is over.
func recording(c client.WithWatch, j *journal, l *life) client.WithWatch {
	write := func(what string, do func() error) error {
		return l.write(func() error {
			err := do()
			if err != nil {
				what += " (refused)"
			}
			j.add(what)
			return err
		})
	}
	return interceptor.NewClient(c, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			return l.read(func() error { return c.Get(ctx, key, o, opts...) })
		},
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			return l.read(func() error { return c.List(ctx, list, opts...) })
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			return write("create "+o.GetName(), func() error { return c.Create(ctx, o, opts...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			return write("delete "+o.GetName(), func() error { return c.Delete(ctx, o, opts...) })
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			return write("update "+o.GetName(), func() error { return c.Update(ctx, o, opts...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			return write("patch "+o.GetName(), func() error { return c.Patch(ctx, o, p, opts...) })
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			return write(described(o), func() error { return c.Apply(ctx, o, opts...) })
		},
		SubResourceGet: func(ctx context.Context, c client.Client, sub string, o, body client.Object, opts ...client.SubResourceGetOption) error {
			return l.read(func() error { return c.SubResource(sub).Get(ctx, o, body, opts...) })
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object, opts ...client.SubResourceUpdateOption) error {
			what := sub + " of " + o.GetName()
			var u client.SubResourceUpdateOptions
			u.ApplyOptions(opts)
			if body, ok := u.SubResourceBody.(*unstructured.Unstructured); ok && sub == "scale" {
				replicas, _, _ := unstructured.NestedInt64(body.Object, "spec", "replicas")
				what = fmt.Sprintf("scale %s %d", o.GetName(), replicas)
			}
			return write(what, func() error { return c.SubResource(sub).Update(ctx, o, opts...) })
		},
		SubResourceApply: func(ctx context.Context, c client.Client, sub string, o runtime.ApplyConfiguration, opts ...client.SubResourceApplyOption) error {
			return write(sub+" of "+described(o), func() error { return c.SubResource(sub).Apply(ctx, o, opts...) })
		},
	})
}

// described says what an apply is about.
func described(o runtime.ApplyConfiguration) string {
	b, _ := json.Marshal(o)
	var m struct {
		Kind     string
		Metadata struct {
			Name       string
			Labels     map[string]string
			Finalizers []string
		}
		Status struct {
			Phase, Reason string
			Provisioning  struct{ Wish, State string }
		}
	}
	_ = json.Unmarshal(b, &m)
	switch {
	case m.Kind == "Node" && m.Metadata.Labels[v1alpha1.LabelNodeSite] != "":
		return "label " + m.Metadata.Name
	case m.Kind == "Node":
		return "unlabel " + m.Metadata.Name
	case m.Kind == "Site" && m.Status.Phase != "":
		return strings.Join([]string{m.Metadata.Name, m.Status.Phase, m.Status.Reason, m.Status.Provisioning.Wish, m.Status.Provisioning.State}, " ")
	case m.Kind == "Site":
		return fmt.Sprintf("finalizers of %s %v", m.Metadata.Name, m.Metadata.Finalizers)
	}
	return "apply " + m.Kind + " " + m.Metadata.Name
}
