package debian

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/forkd-dev/forkd/internal/image/rootfs"
)

// Installed is a package whose contents are in the tree.
type Installed struct {
	*Package
	*Contents
}

// Fixup does to a tree of unpacked packages what matters of what their scripts
// would have done; the package comment lists it. now becomes the modification
// time of the files it makes.
func Fixup(tree *rootfs.Tree, installed []Installed, now time.Time) error {
	f := &fixer{tree: tree, now: now}
	f.mergeUsr()
	f.directories()
	f.accounts()
	f.home()
	f.sudo()
	f.templates()
	f.network()
	f.pam()
	f.certificates()
	f.dpkgDatabase(installed)
	var alternatives []alternative
	for _, p := range installed {
		alternatives = append(alternatives, parseAlternatives(p.postinst)...)
	}
	f.alternatives(alternatives)
	if f.err != nil {
		return fmt.Errorf("finishing the file tree: %w", f.err)
	}
	return nil
}

// fixer adds files to a tree and keeps the first error.
type fixer struct {
	tree *rootfs.Tree
	now  time.Time
	err  error
}

// add puts a node at name unless something is there. A package's own file is
// never overwritten.
func (f *fixer) add(name string, node *rootfs.Node) {
	if f.err != nil {
		return
	}
	if _, err := f.tree.Lstat(name); err == nil {
		return
	}
	node.ModTime = f.now
	f.err = f.tree.Add(name, node)
}

func (f *fixer) file(name, text string) { f.add(name, rootfs.Bytes(0o644, []byte(text))) }

// read returns the contents of a file in the tree; ok is false when there is no
// such file.
func (f *fixer) read(name string) (text []byte, ok bool) {
	node, err := f.tree.Lookup(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !node.Mode.IsRegular() || f.err != nil {
		return nil, false
	}
	if err == nil {
		text, err = io.ReadAll(node.Open())
	}
	if err != nil {
		f.err = fmt.Errorf("%s: %w", name, err)
		return nil, false
	}
	return text, true
}

// copyFrom copies a template that a package ships to the place where its script
// would have put it.
func (f *fixer) copyFrom(template, name string) {
	if text, ok := f.read(template); ok {
		f.add(name, rootfs.Bytes(0o644, text))
	}
}

// directory sets owner and mode of a directory, making it when it is missing.
func (f *fixer) directory(name string, mode fs.FileMode, gid uint32) {
	if f.err != nil {
		return
	}
	node := rootfs.Dir(mode)
	node.GID, node.ModTime = gid, f.now
	f.err = f.tree.Add(name, node)
}

func (f *fixer) mergeUsr() {
	for _, dir := range []string{"bin", "sbin", "lib"} {
		f.add(dir, rootfs.Link("usr/"+dir))
	}
	if exists(f.tree, "usr/lib64") {
		f.add("lib64", rootfs.Link("usr/lib64"))
	}
}

const groupMail, groupUtmp, groupShadow = 8, 43, 42

func (f *fixer) directories() {
	for _, dir := range []string{
		"dev", "proc", "sys", "run", "mnt", "srv", "opt", "etc/opt", "var/opt", "media", "home", "boot",
		"usr/local/bin", "usr/local/sbin", "usr/local/lib", "usr/local/share", "usr/local/include",
		"usr/local/etc", "usr/local/src", "var/log", "var/cache", "var/lib", "var/spool",
	} {
		f.add(dir, rootfs.Dir(0o755))
	}
	f.directory("root", 0o700, 0)
	f.directory("tmp", 0o777|fs.ModeSticky, 0)
	f.directory("var/tmp", 0o777|fs.ModeSticky, 0)
	f.directory("var/mail", 0o775|fs.ModeSetgid, groupMail)
	f.add("var/spool/mail", rootfs.Link("../mail"))
	for name, target := range map[string]string{"var/run": "/run", "var/lock": "/run/lock"} {
		if old, err := f.tree.Lstat(name); err == nil && old.Mode.IsDir() && len(old.Names()) == 0 && f.err == nil {
			f.err = f.tree.Remove(name)
		}
		f.add(name, rootfs.Link(target))
	}
	for _, log := range []string{"wtmp", "btmp", "lastlog"} {
		node := rootfs.Bytes(0o664, nil)
		node.GID = groupUtmp
		f.add("var/log/"+log, node)
	}
}

// The ordinary account that every image has, for work that needs no root.
const (
	userName = "user"
	userID   = 1000 // its group has the same number
	userHome = "home/" + userName
)

// accounts makes the user and group files. The accounts come from the
// distribution, and there is one more; all passwords are locked.
func (f *fixer) accounts() {
	f.extend("usr/share/base-passwd/passwd.master", "etc/passwd", fmt.Sprintf("%s:*:%d:%d::/%s:/bin/bash\n", userName, userID, userID, userHome))
	f.extend("usr/share/base-passwd/group.master", "etc/group", fmt.Sprintf("%s:*:%d:\n", userName, userID))
	if passwd, ok := f.read("etc/passwd"); ok {
		f.shadow("etc/shadow", passwd, "%s:*:19000:0:99999:7:::\n")
	}
	if group, ok := f.read("etc/group"); ok {
		f.shadow("etc/gshadow", group, "%s:*::\n")
	}
	f.file("etc/subuid", "")
	f.file("etc/subgid", "")
	f.copyFrom("usr/share/debianutils/shells", "etc/shells")
}

// extend is copyFrom with a line more.
func (f *fixer) extend(template, name, line string) {
	if text, ok := f.read(template); ok {
		f.file(name, string(text)+line)
	}
}

// home makes the home directory of the ordinary account with what new accounts
// get.
func (f *fixer) home() {
	if f.err != nil {
		return
	}
	home := rootfs.Dir(0o755)
	home.UID, home.GID, home.ModTime = userID, userID, f.now
	if f.err = f.tree.Add(userHome, home); f.err != nil {
		return
	}
	for _, name := range []string{".bash_logout", ".bashrc", ".profile"} {
		if text, ok := f.read("etc/skel/" + name); ok {
			node := rootfs.Bytes(0o644, text)
			node.UID, node.GID = userID, userID
			f.add(userHome+"/"+name, node)
		}
	}
}

// sudo lets the ordinary account become root without a password, as people expect
// of the account of a sandbox: who is root there is no more than a guest either.
func (f *fixer) sudo() {
	if exists(f.tree, "etc/sudoers.d") {
		f.add("etc/sudoers.d/"+userName, rootfs.Bytes(0o440, []byte(userName+" ALL=(ALL:ALL) NOPASSWD: ALL\n")))
	}
}

func (f *fixer) shadow(name string, accounts []byte, format string) {
	var text strings.Builder
	for line := range strings.Lines(string(accounts)) {
		if account, _, ok := strings.Cut(line, ":"); ok && account != "" {
			fmt.Fprintf(&text, format, account)
		}
	}
	node := rootfs.Bytes(0o640, []byte(text.String()))
	node.GID = groupShadow
	f.add(name, node)
}

// profile takes the place of Debian's /etc/profile, which starts two programs.
//
//go:embed profile
var profile string

func (f *fixer) templates() {
	f.copyFrom("usr/share/base-files/dot.profile", "root/.profile")
	f.copyFrom("usr/share/base-files/dot.bashrc", "root/.bashrc")
	f.file("etc/profile", profile)
	f.copyFrom("usr/share/libc-bin/nsswitch.conf", "etc/nsswitch.conf")
	f.copyFrom("usr/share/readline/inputrc", "etc/inputrc")
	f.add("etc/dpkg/origins/default", rootfs.Link("debian"))
	f.add("etc/mtab", rootfs.Link("../proc/self/mounts"))
	f.file("etc/fstab", "")
	if exists(f.tree, "usr/share/zoneinfo/Etc/UTC") {
		f.add("etc/localtime", rootfs.Link("/usr/share/zoneinfo/Etc/UTC"))
		f.file("etc/timezone", "Etc/UTC\n")
	}
	if exists(f.tree, "usr/bin/pip3") {
		f.file("etc/pip.conf", "[global]\nbreak-system-packages = true\n")
	}
}

func (f *fixer) network() {
	f.file("etc/hostname", "forkd\n")
	f.file("etc/hosts", "127.0.0.1\tlocalhost\n127.0.1.1\tforkd\n::1\tlocalhost ip6-localhost ip6-loopback\n")
	f.file("etc/resolv.conf", "")
	f.file("etc/machine-id", "")
}

// pam makes the common-* files that the others include, as they are on a system
// where only passwords in /etc/shadow are used.
func (f *fixer) pam() {
	if !exists(f.tree, "usr/share/pam/common-auth") {
		return
	}
	f.file("etc/pam.d/common-auth", "auth [success=1 default=ignore] pam_unix.so nullok\nauth requisite pam_deny.so\nauth required pam_permit.so\n")
	f.file("etc/pam.d/common-account", "account [success=1 new_authtok_reqd=done default=ignore] pam_unix.so\naccount requisite pam_deny.so\naccount required pam_permit.so\n")
	f.file("etc/pam.d/common-password", "password [success=1 default=ignore] pam_unix.so obscure yescrypt\npassword requisite pam_deny.so\npassword required pam_permit.so\n")
	session := "session [default=1] pam_permit.so\nsession requisite pam_deny.so\nsession required pam_permit.so\nsession required pam_unix.so\n"
	f.file("etc/pam.d/common-session", session)
	f.file("etc/pam.d/common-session-noninteractive", session)
}

// certificates joins all certificates to the bundle that TLS libraries read.
func (f *fixer) certificates() {
	const dir = "usr/share/ca-certificates"
	var bundle bytes.Buffer
	var conf strings.Builder
	for name, node := range f.tree.All() {
		if !strings.HasPrefix(name, dir+"/") || path.Ext(name) != ".crt" || !node.Mode.IsRegular() {
			continue
		}
		text, ok := f.read(name)
		if !ok {
			continue
		}
		bundle.Write(bytes.TrimRight(text, "\n"))
		bundle.WriteByte('\n')
		fmt.Fprintln(&conf, strings.TrimPrefix(name, dir+"/"))
		f.add("etc/ssl/certs/"+strings.TrimSuffix(path.Base(name), ".crt")+".pem", rootfs.Link("/"+name))
	}
	if bundle.Len() > 0 {
		f.file("etc/ssl/certs/ca-certificates.crt", bundle.String())
		f.file("etc/ca-certificates.conf", conf.String())
	}
}

// notInStatus are the fields of the index that tell about the archive, not
// about the installed package.
var notInStatus = []string{"Filename", "Size", "MD5sum", "SHA1", "SHA256", "Description-md5"}

// dpkgDatabase writes what dpkg knows of installed packages: their control
// fields and file lists.
func (f *fixer) dpkgDatabase(installed []Installed) {
	sorted := slices.SortedFunc(slices.Values(installed), func(a, b Installed) int { return strings.Compare(a.Name, b.Name) })
	var status strings.Builder
	for _, p := range sorted {
		multi := false
		for name, value := range fields(p.stanza) {
			if slices.Contains(notInStatus, name) {
				continue
			}
			multi = multi || name == "Multi-Arch" && value == "same"
			fmt.Fprintf(&status, "%s: %s\n", name, value)
			if name == "Package" {
				status.WriteString("Status: install ok installed\n")
			}
		}
		status.WriteByte('\n')
		list := "var/lib/dpkg/info/" + p.Name + ".list"
		if multi {
			list = "var/lib/dpkg/info/" + p.Name + ":" + p.Arch + ".list"
		}
		f.file(list, fileList(p.Entries))
	}
	f.file("var/lib/dpkg/status", status.String())
	f.file("var/lib/dpkg/available", "")
	f.file("var/lib/dpkg/info/format", "1\n")
	f.add("var/lib/dpkg/updates", rootfs.Dir(0o755))
}

func fileList(entries []Entry) string {
	var list strings.Builder
	for _, entry := range entries {
		if entry.Path == "" {
			list.WriteString("/.\n")
			continue
		}
		list.WriteString("/" + entry.Path + "\n")
	}
	return list.String()
}
