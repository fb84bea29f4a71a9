package agent

import "time"

// SetInterruptTime changes how long a guest may take to pass an interrupt on.
func (c *Client) SetInterruptTime(d time.Duration) { c.interruptTime = d }

// InterruptGrace is how long an interrupted evaluation may take to end.
const InterruptGrace = interruptGrace
