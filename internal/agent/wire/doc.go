// Package wire is the protocol between the host and the agent inside a guest, and between the host and a warm runtime.
//
// One stream connection carries one operation. The client opens it with a frame that names the operation; the server
// answers with an OK or an Error frame; operations that stream go on with data frames and end with a last frame of their
// own. docs/agent-protocol.md is the description for people; the golden file in testdata pins the bytes.
//
// A frame is a little-endian u32 payload length, a u8 type and the payload. Control payloads are JSON, streams are raw
// bytes, and the refresh of a restored child is a fixed binary layout because it runs in every child.
//
// Invariants: a length above MaxFrame is refused before anything is allocated, and a payload's memory grows with the
// bytes that arrive, never with the length that was announced. A Reader belongs to one goroutine; a Writer may be shared,
// its lock is the only one here and nothing is locked inside it.
package wire
