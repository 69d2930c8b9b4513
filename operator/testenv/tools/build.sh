#!/usr/bin/env bash
# Builds the test bench's control plane from the Go modules beside this script
# into .cache/testenv: about 15 minutes on 2 cores the first time, nothing where
# the versions are there already. With KUBEBUILDER_ASSETS set, that folder is used
# as it is and nothing is built.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
go=${GO:-go}

# name, module's folder, module, package
tools=(
  "etcd etcd go.etcd.io/etcd/server/v3 go.etcd.io/etcd/server/v3"
  "kube-apiserver kubernetes k8s.io/kubernetes k8s.io/kubernetes/cmd/kube-apiserver"
  "kube-controller-manager kubernetes k8s.io/kubernetes k8s.io/kubernetes/cmd/kube-controller-manager"
  "kube-scheduler kubernetes k8s.io/kubernetes k8s.io/kubernetes/cmd/kube-scheduler"
  "kwok kwok sigs.k8s.io/kwok sigs.k8s.io/kwok/cmd/kwok"
)

if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  missing=()
  for tool in "${tools[@]}"; do
    read -r name _ <<<"$tool"
    [ -x "$KUBEBUILDER_ASSETS/$name" ] || missing+=("$name")
  done
  if [ ${#missing[@]} -gt 0 ]; then
    echo "testenv: $KUBEBUILDER_ASSETS (KUBEBUILDER_ASSETS) lacks ${missing[*]}: tests that need them are skipped; unset KUBEBUILDER_ASSETS to build all of them"
  else
    echo "testenv: $KUBEBUILDER_ASSETS (KUBEBUILDER_ASSETS) has everything"
  fi
  exit 0
fi

out=$(cd "$here/../../.." && pwd)/.cache/testenv
mkdir -p "$out"
number=0
for tool in "${tools[@]}"; do
  read -r name folder module package <<<"$tool"
  number=$((number + 1))
  version=$(cd "$here/$folder" && "$go" list -m -f '{{.Version}}' "$module")
  # Another version of a dependency is another program.
  stamp="$version $(cat "$here/$folder/go.mod" "$here/$folder/go.sum" | sha256sum | cut -c1-16)"
  if [ -x "$out/$name" ] && [ "$(cat "$out/$name.stamp" 2>/dev/null)" = "$stamp" ]; then
    echo "testenv: $number/${#tools[@]} $name $version is there"
    continue
  fi
  echo "testenv: $number/${#tools[@]} $name $version: building (minutes)"
  flags="-s -w"
  if [ "$folder" = kubernetes ]; then
    # Without it the version is v0.0.0-master and checks of version skew complain.
    IFS=. read -r major minor _ <<<"${version#v}"
    for variable in "gitVersion=$version" "gitMajor=$major" "gitMinor=$minor"; do
      flags+=" -X k8s.io/component-base/version.$variable"
    done
  fi
  started=$SECONDS
  (cd "$here/$folder" && "$go" build -trimpath -ldflags "$flags" -o "$out/$name.new" "$package")
  mv "$out/$name.new" "$out/$name"
  echo "$stamp" >"$out/$name.stamp"
  echo "testenv: $number/${#tools[@]} $name $version: built in $((SECONDS - started)) s"
done
