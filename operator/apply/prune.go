package apply

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Prune deletes what owner controls of the kinds of lists and is not in keep,
// such as the Redis of a federation that no longer wants one. Lists are empty, of
// typed objects, and are read from the cache in the owner's namespace; options
// narrow them further. It goes on after a failure and gives all of them.
func (a *Applier) Prune(ctx context.Context, owner metav1.Object, keep []runtime.ApplyConfiguration, lists []client.ObjectList, options ...client.ListOption) (deleted int, err error) {
	kept := map[identity]bool{}
	for _, c := range keep {
		_, id, err := identify(c)
		if err != nil {
			return 0, err
		}
		kept[id] = true
	}
	var errs []error
	for _, list := range lists {
		if err := a.Client.List(ctx, list, append([]client.ListOption{client.InNamespace(owner.GetNamespace())}, options...)...); err != nil {
			errs = append(errs, &Error{Operation: "list", Kind: fmt.Sprintf("%T", list), Key: client.ObjectKey{Namespace: owner.GetNamespace()}, Err: err})
			continue
		}
		err := meta.EachListItem(list, func(o runtime.Object) error {
			item, ok := o.(client.Object)
			if !ok || !metav1.IsControlledBy(item, owner) || kept[identity{a.kindOf(item), client.ObjectKeyFromObject(item)}] {
				return nil
			}
			gone, err := a.Delete(ctx, item)
			if gone {
				deleted++
			}
			errs = append(errs, err)
			return nil
		})
		errs = append(errs, err)
	}
	return deleted, errors.Join(errs...)
}
