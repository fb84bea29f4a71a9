package agent

import "time"

// SetInterruptTime changes how long a guest may take to pass an interrupt on, until restore.
func SetInterruptTime(d time.Duration) (restore func()) {
	before := interruptTime
	interruptTime = d
	return func() { interruptTime = before }
}
