package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/forkd-dev/forkd/api"
	"github.com/forkd-dev/forkd/client"
)

type forwardOptions struct {
	f       *factory
	address string
	json    bool
}

func newPortForward(f *factory) *cobra.Command {
	o := &forwardOptions{f: f}
	cmd := &cobra.Command{
		Use:   "port-forward ID [LOCAL:]REMOTE...",
		Short: "Reach TCP ports of a sandbox from here",
		Long: `Listen on ports here and pass connections on to ports of a sandbox, until Ctrl-C or until a
connection fails because the sandbox is not there any more. Without a local port it is the same
one; 0 is one that is free. What is printed once they can be used are the addresses here.

A connection that the server in the sandbox resets, or that breaks otherwise, is reset here,
too. Why connections fail is told once for each reason.`,
		Example:           `  forkd port-forward sb0123456789ab 8080:80`,
		Args:              atLeast(2, "sandbox id or port"),
		ValidArgsFunction: first(f.boxes("running")),
		RunE:              func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), args[0], args[1:]) },
	}
	cmd.Flags().StringVar(&o.address, "address", "127.0.0.1", "`address` here to listen on")
	jsonFlag(cmd, &o.json)
	return cmd
}

// forward is a port here and the one that it leads to.
type forward struct {
	Local    string `json:"local"`
	Remote   int    `json:"remote"`
	listener net.Listener
}

func (o *forwardOptions) run(ctx context.Context, id string, pairs []string) error {
	c, err := o.f.connect(ctx)
	if err != nil {
		return err
	}
	box, err := c.Sandbox(ctx, id)
	if err == nil && box.State == api.SandboxInfoStateCrashed {
		_, err = c.Ping(ctx, id) // it says why
	}
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var all []forward
	for _, pair := range pairs {
		f, err := o.listen(pair)
		if err != nil {
			return err
		}
		defer f.listener.Close()
		all = append(all, f)
	}
	if err := o.print(all); err != nil {
		return err
	}
	var wg sync.WaitGroup
	failed := make(chan error, len(all))
	for _, f := range all {
		context.AfterFunc(ctx, func() { f.listener.Close() })
		wg.Go(func() { failed <- o.serve(ctx, c, id, f, end) })
	}
	err = <-failed
	end(nil)
	wg.Wait()
	return err
}

func (o *forwardOptions) print(all []forward) error {
	if o.json {
		return o.f.io.json(all)
	}
	for _, f := range all {
		if _, err := fmt.Fprintf(o.f.io.Out, "%s -> %d\n", f.Local, f.Remote); err != nil {
			return err
		}
	}
	return nil
}

// listen reads [LOCAL:]REMOTE and opens the local port.
func (o *forwardOptions) listen(pair string) (f forward, err error) {
	local, remote, both := strings.Cut(pair, ":")
	if !both {
		remote = local
	}
	f.Remote, err = strconv.Atoi(remote)
	from, err2 := strconv.Atoi(local)
	if err != nil || err2 != nil || f.Remote < 1 || f.Remote > 65535 || from < 0 || from > 65535 {
		return f, &usageError{msg: fmt.Sprintf("malformed ports %q", pair), hint: "for example 8080:80"}
	}
	f.listener, err = net.Listen("tcp", net.JoinHostPort(o.address, local))
	if err != nil {
		return f, o.cannotListen(err)
	}
	f.Local = f.listener.Addr().String()
	return f, nil
}

// cannotListen says what there is to do: the port is taken or reserved, or it is not that.
func (o *forwardOptions) cannotListen(err error) error {
	hint := fmt.Sprintf("%s is no address to listen on here: name another with --address, such as 127.0.0.1", o.address)
	if errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EACCES) {
		hint = "name another local port, or 0 for one that is free"
	}
	return &hinted{err, hint} // the error names the address and the port
}

// serve passes connections on until the listener is closed. If the sandbox turns out not to be
// there any more it calls end with that. Anything else is told once: the next connection may do
// better, and a browser makes many.
func (o *forwardOptions) serve(ctx context.Context, c *client.Client, id string, f forward, end func(error)) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	var told sync.Map
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return errors.Join(context.Cause(ctx), ignoreClosed(err))
		}
		wg.Go(func() {
			err := pass(ctx, c, id, f.Remote, conn)
			if errors.Is(err, client.ErrReset) {
				err = fmt.Errorf("port %d: %w", f.Remote, err)
				if _, why := c.Ping(ctx, id); why != nil { // it is the sandbox that ended, or was paused
					err = why
				}
			}
			switch {
			case err == nil || ctx.Err() != nil:
			case client.IsCode(err, api.ErrorCodeNotFound) || client.IsCode(err, api.ErrorCodeSandboxDead):
				end(err)
			default:
				if _, already := told.LoadOrStore(err.Error(), true); !already {
					o.tell(err)
				}
			}
		})
	}
}

// tell says why a connection failed; the command goes on.
func (o *forwardOptions) tell(err error) {
	text := fmt.Sprintf("forkd: %v\n", err)
	if hint := hintOf(err); hint != "" {
		text += fmt.Sprintf("forkd: hint: %s\n", hint)
	}
	io.WriteString(o.f.io.Err, text)
}

func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// pass carries one connection. The client here finds it reset if it could not be made, or broke.
func pass(ctx context.Context, c *client.Client, id string, port int, conn net.Conn) error {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { reset(conn) })()
	remote, err := c.DialPort(ctx, id, port)
	if err != nil {
		reset(conn)
		return err
	}
	defer remote.Close()
	var wg sync.WaitGroup
	wg.Go(func() { send(remote, conn) })
	err = receive(conn, remote)
	wg.Wait()
	return err
}

// send passes on what the client here says, and its end. Where the sandbox takes no more it leaves
// the connection as it is: only what can still be read of it tells whether the answer is whole.
func send(remote io.WriteCloser, conn net.Conn) {
	_, err := io.Copy(remote, conn)
	switch {
	case err == nil:
		endWrites(remote)
	case !errors.Is(err, client.ErrReset): // the client here is gone
		remote.Close()
	}
}

// receive passes on what the server says, and its end. Whatever else ends it resets the
// connection here. The error is that of the sandbox's side.
func receive(conn net.Conn, remote io.ReadCloser) error {
	_, err := io.Copy(conn, remote)
	if err == nil {
		endWrites(conn)
		return nil
	}
	reset(conn)
	remote.Close()
	if errors.Is(err, client.ErrReset) {
		return client.ErrReset // without the addresses here, which are others each time
	}
	return nil
}

// endWrites closes a connection for writing. One that fails to is broken, as reading it tells.
func endWrites(conn io.Closer) {
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	} else {
		conn.Close()
	}
}

// reset closes a connection such that its other side takes it for broken, not for ended.
func reset(conn io.Closer) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) // a connection that is gone needs no more
	}
	conn.Close()
}
