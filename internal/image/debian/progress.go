package debian

// Progress tells how far a step is. Done and Total are bytes for downloads and
// packages for unpacking; Total is 0 where it is not known.
type Progress struct {
	Step        string // what is being done, for example "download"
	Detail      string // the package or file at hand; may be empty
	Done, Total int64
	// Notice marks something a person should read even after the step is over,
	// for example that a damaged cache file is fetched again; Detail has it.
	Notice bool
}
