package chartstest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	lua "github.com/yuin/gopher-lua"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "girassol.dev/api/federation/v1alpha1"
	"girassol.dev/operator/testenv"
)

// fixture is one state of a Federation, and what those who wait for it must make
// of it.
type fixture struct {
	name       string
	object     v1alpha1.Federation
	kstatus    status.Status
	argoHealth string
}

func condition(kind string, s metav1.ConditionStatus, reason v1alpha1.Reason) metav1.Condition {
	return metav1.Condition{Type: kind, Status: s, Reason: string(reason), Message: "words for " + string(reason), ObservedGeneration: 2}
}

func fixtures() []fixture {
	ready := func(s metav1.ConditionStatus, reason v1alpha1.Reason, more ...metav1.Condition) v1alpha1.Federation {
		return v1alpha1.Federation{
			ObjectMeta: metav1.ObjectMeta{Name: "gpt", Namespace: "training", Generation: 2},
			Status: v1alpha1.FederationStatus{ObservedGeneration: 2,
				Conditions: append([]metav1.Condition{condition(v1alpha1.ConditionReady, s, reason)}, more...)},
		}
	}
	old := ready(metav1.ConditionTrue, v1alpha1.ReasonTraining)
	old.Generation = 3
	going := ready(metav1.ConditionTrue, v1alpha1.ReasonTraining)
	going.DeletionTimestamp = &metav1.Time{}
	suspended := ready(metav1.ConditionTrue, v1alpha1.ReasonSuspended, condition(v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended))
	return []fixture{
		{"trains", ready(metav1.ConditionTrue, v1alpha1.ReasonTraining), status.CurrentStatus, "Healthy"},
		{"sleeps by its energy policy", ready(metav1.ConditionTrue, v1alpha1.ReasonWaitingForEnergy,
			condition(v1alpha1.ConditionEnergyFavourable, metav1.ConditionFalse, v1alpha1.ReasonWaitingForEnergy),
			condition(v1alpha1.ConditionQuorumMet, metav1.ConditionFalse, v1alpha1.ReasonWaitingForEnergy),
			condition(v1alpha1.ConditionProgressing, metav1.ConditionFalse, v1alpha1.ReasonWaitingForEnergy)), status.CurrentStatus, "Healthy"},
		{"is completed", ready(metav1.ConditionTrue, v1alpha1.ReasonCompleted), status.CurrentStatus, "Healthy"},
		{"is suspended", suspended, status.CurrentStatus, "Suspended"},
		{"waits for its coordinator", ready(metav1.ConditionFalse, v1alpha1.ReasonCoordinatorStarting), status.InProgressStatus, "Progressing"},
		{"cannot see its coordinator", ready(metav1.ConditionUnknown, v1alpha1.ReasonCoordinatorUnreachable), status.InProgressStatus, "Progressing"},
		{"has a new spec", old, status.InProgressStatus, "Progressing"},
		{"needs a person", ready(metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec, condition(v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInvalidSpec)),
			status.FailedStatus, "Degraded"},
		{"is new", v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Name: "gpt", Generation: 1}, Status: v1alpha1.FederationStatus{ObservedGeneration: -1}}, status.InProgressStatus, "Progressing"},
	}
}

func fields(t *testing.T, f *v1alpha1.Federation) map[string]any {
	t.Helper()
	f.APIVersion, f.Kind = v1alpha1.APIVersion, v1alpha1.KindFederation
	out, err := runtime.DefaultUnstructuredConverter.ToUnstructured(f)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestWhoWaitsForAReleaseIsNotKeptWaitingByNight is kstatus, by which Helm 4 and
// Flux wait.
func TestWhoWaitsForAReleaseIsNotKeptWaitingByNight(t *testing.T) {
	for _, f := range fixtures() {
		t.Run(f.name, func(t *testing.T) {
			result, err := status.Compute(unstructuredOf(fields(t, &f.object)))
			if err != nil {
				t.Fatal(err)
			}
			if result.Status != f.kstatus {
				t.Errorf("kstatus says %s (%s), want %s", result.Status, result.Message, f.kstatus)
			}
		})
	}
}

// TestArgoCDsHealthIsWhatTheGuideSays runs the guide's script in the machine that
// Argo CD runs it in.
func TestArgoCDsHealthIsWhatTheGuideSays(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join(testenv.Root(), "docs", "kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)resource.customizations.health.girassol.dev_Federation: \\|\n(.*?)```").FindSubmatch(guide)
	if block == nil {
		t.Fatal("docs/kubernetes.md has no health script")
	}
	for _, f := range fixtures() {
		t.Run(f.name, func(t *testing.T) {
			l := lua.NewState(lua.Options{SkipOpenLibs: true})
			defer l.Close()
			l.Push(l.NewFunction(lua.OpenBase))
			l.Push(lua.LString(""))
			l.Call(1, 0)
			l.SetGlobal("obj", table(l, fields(t, &f.object)))
			if err := l.DoString(string(block[1])); err != nil {
				t.Fatal(err)
			}
			got, ok := l.Get(-1).(*lua.LTable)
			if !ok {
				t.Fatalf("the script returns %v", l.Get(-1))
			}
			if h := got.RawGetString("status").String(); h != f.argoHealth {
				t.Errorf("Argo CD would show %s (%s), want %s", h, got.RawGetString("message"), f.argoHealth)
			}
			if m := got.RawGetString("message").String(); m == "" || m == "nil" {
				t.Error("there is no message")
			}
		})
	}
}

func table(l *lua.LState, v any) lua.LValue {
	switch v := v.(type) {
	case map[string]any:
		t := l.NewTable()
		for k, e := range v {
			t.RawSetString(k, table(l, e))
		}
		return t
	case []any:
		t := l.NewTable()
		for _, e := range v {
			t.Append(table(l, e))
		}
		return t
	case nil:
		return lua.LNil
	case bool:
		return lua.LBool(v)
	case string:
		return lua.LString(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	}
	panic(fmt.Sprintf("no Lua value for %T", v))
}

func TestANewObjectIsNotTakenForDone(t *testing.T) {
	e, ctx := cluster(t), context.Background()
	for _, o := range []client.Object{
		&v1alpha1.Site{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: "new"}},
		&v1alpha1.Federation{ObjectMeta: metav1.ObjectMeta{Namespace: trainingNamespace, Name: "new"}, Spec: v1alpha1.FederationSpec{Sites: []v1alpha1.SiteReference{{Name: "new"}}}},
	} {
		if err := e.Client.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Client.Delete(ctx, o) }()
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			t.Fatal(err)
		}
		result, err := status.Compute(unstructuredOf(fields))
		if err != nil {
			t.Fatal(err)
		}
		if result.Status != status.InProgressStatus {
			t.Errorf("kstatus says %s of a %T that no operator has seen", result.Status, o)
		}
	}
}
