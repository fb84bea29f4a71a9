// Package debian reads a Debian archive and turns packages into a file tree,
// with no apt, dpkg or root on the host.
//
// A [Client] fetches the signed index of a suite from a mirror, checks its
// OpenPGP signature against the archive keys embedded here, and everything else
// against the hashes in that index. [Index.Resolve] works out what a set of
// packages needs, [Client.Fetch] downloads it into a cache whose files are named
// by their SHA-256, [Unpack] reads one package, and [Fixup] finishes the tree.
// No download host is named in the source: the mirror is an option, the
// environment's, or that of the host's own apt sources ([FindMirror]).
//
// # What replaces the maintainer scripts
//
// Scripts inside packages are never run. The files and links that they would
// have made, and that programs in a sandbox miss, are made by [Fixup]:
//
//   - merged /usr: /bin, /sbin, /lib and /lib64 are links into /usr;
//   - /etc/passwd and /etc/group from base-passwd's master copies, /etc/shadow
//     and /etc/gshadow with every password locked, /root mode 0700 with the
//     skeleton's dot files, /etc/shells;
//   - an ordinary account "user", number 1000, with /home/user and the skeleton's
//     dot files, which sudo lets become root without a password;
//   - /etc/nsswitch.conf and the other files that base-files, libc-bin and
//     libpam-runtime keep as templates; /etc/pam.d/common-*; an /etc/profile of our
//     own, which starts no programs;
//   - /etc/hosts, /etc/hostname, an empty /etc/resolv.conf and /etc/machine-id
//     for the guest's first process to fill, /etc/mtab, /etc/localtime (UTC);
//   - alternatives (awk, pager, which, libblas.so.3, cc, ...): the commands that
//     register them are read, not run, where all their arguments are literal;
//   - /etc/ssl/certs/ca-certificates.crt from every certificate under
//     /usr/share/ca-certificates;
//   - /etc/pip.conf, which lets pip install into the system's Python: a sandbox
//     is the virtual environment;
//   - dpkg's database, so that dpkg -l and dpkg -L tell what is installed;
//   - /tmp and /var/tmp mode 1777 and the mount points of the kernel's file
//     systems.
//
// There is no ld.so.cache: the loader finds Debian's libraries in the
// directories built into it. Byte-compiled Python files are not made either;
// the first import in a machine writes them.
//
// # What is left out
//
// Manuals, info pages, translations, changelogs and other documentation are
// dropped while unpacking ([Keep]); copyright files stay. Device nodes in a
// package are ignored: the guest's /dev is the kernel's.
//
// # Concurrency
//
// A Client may be used by several goroutines. Its only lock guards the list of
// cache files already verified and is never held while waiting for the network.
package debian
