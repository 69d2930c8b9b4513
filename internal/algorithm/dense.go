package algorithm

import "girassol.dev/api/federation/v1alpha1"

var whole = Encoding{Transform: Identity, KeepOneIn: 1, Values: FP32}

// diLoCo is the mean of dense pseudo-gradients and a step with Nesterov momentum.
var diLoCo = strategy{
	name: DiLoCo, spec: v1alpha1.DiLoCo, dense: true,
	defaults: Parameters{OuterLearningRate: 0.7, OuterMomentum: 0.9, Uplink: whole, Downlink: whole},
}

// fedAvg is the mean of weights: the step is the mean pseudo-gradient itself.
var fedAvg = strategy{
	name: FedAvg, spec: v1alpha1.FedAvg, dense: true,
	defaults: Parameters{OuterLearningRate: 1, OuterMomentum: 0, Uplink: whole, Downlink: whole},
}
