//go:build race

package director

// raceDetector says whether this is a build with it.
const raceDetector = true
