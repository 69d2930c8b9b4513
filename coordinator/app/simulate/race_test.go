//go:build race

package simulate

// raceDetector says whether this is a build with it.
const raceDetector = true
