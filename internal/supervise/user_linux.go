package supervise

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/thenforce/thenforce/internal/thread"
	"golang.org/x/sys/unix"
)

// User is whom the command runs as, as [LookupUser] found it.
type User struct {
	// Name is the name in the user database, or the number in decimal when it has none.
	Name string
	UID  uint32
	GID  uint32
	// Groups are the supplementary groups; all others are given up.
	Groups []uint32
	// Home is the home directory, "/" for a number that is not in the database.
	Home string

	// groupGiven says that the group was named, so that even root is a switch.
	groupGiven bool
}

// LookupUser finds the user that spec names, in the form of --user: NAME or UID, and optionally a colon and GROUP or
// GID. What consists of digits is a number.
//
// A name has the supplementary groups of the group database, whatever its primary group; a number has none. The primary
// group of a number comes from the database; a number that is not in there needs a group beside it, since any guess
// could be a group with power of its own.
func LookupUser(spec string) (*User, error) {
	name, group, groupGiven := strings.Cut(spec, ":")
	u, err := lookupUser(name, groupGiven)
	if err == nil && groupGiven {
		u.groupGiven = true
		u.GID, err = lookupGroup(group)
	}
	if err != nil {
		return nil, fmt.Errorf("look up user %q: %w", spec, err)
	}
	return u, nil
}

func lookupUser(name string, groupGiven bool) (*User, error) {
	if name == "" {
		return nil, errors.New("no user is named")
	}
	if isNumber(name) {
		uid, err := parseID(name)
		if err != nil {
			return nil, err
		}
		entry, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
		if err == nil {
			return fromEntry(entry)
		}
		if unknown := user.UnknownUserIdError(0); !errors.As(err, &unknown) {
			return nil, err
		}
		if !groupGiven {
			return nil, fmt.Errorf("user id %d is not in the user database: name its group too, as %d:GID", uid, uid)
		}
		return &User{Name: strconv.FormatUint(uint64(uid), 10), UID: uid, Home: "/"}, nil
	}
	entry, err := user.Lookup(name)
	if err != nil {
		if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
			return nil, fmt.Errorf("there is no user named %q: %w", name, err)
		}
		return nil, err
	}
	u, err := fromEntry(entry)
	if err != nil {
		return nil, err
	}
	ids, err := entry.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("list the groups of %s: %w", name, err)
	}
	for _, id := range ids {
		gid, err := parseID(id)
		if err != nil {
			return nil, err
		}
		u.Groups = append(u.Groups, gid)
	}
	return u, nil
}

func fromEntry(entry *user.User) (*User, error) {
	uid, err := parseID(entry.Uid)
	if err != nil {
		return nil, err
	}
	gid, err := parseID(entry.Gid)
	if err != nil {
		return nil, err
	}
	home := entry.HomeDir
	if home == "" {
		home = "/"
	}
	return &User{Name: entry.Username, UID: uid, GID: gid, Home: home}, nil
}

func lookupGroup(group string) (uint32, error) {
	if group == "" {
		return 0, errors.New("no group is named after the colon")
	}
	if isNumber(group) {
		return parseID(group)
	}
	entry, err := user.LookupGroup(group)
	if err != nil {
		if unknown := user.UnknownGroupError(""); errors.As(err, &unknown) {
			return 0, fmt.Errorf("there is no group named %q: %w", group, err)
		}
		return 0, err
	}
	return parseID(entry.Gid)
}

func isNumber(s string) bool {
	return strings.Trim(s, "0123456789") == ""
}

// parseID reads a user or group id. The highest number is none: the kernel takes it as "leave as it is", so a switch to
// it would leave the command root.
func parseID(s string) (uint32, error) {
	id, err := strconv.ParseUint(s, 10, 32)
	if err != nil || id == math.MaxUint32 {
		return 0, fmt.Errorf("%s is not a user or group id (0 to %d)", s, uint32(math.MaxUint32-1))
	}
	return uint32(id), nil
}

// switches reports whether the command's credentials differ from ours. Root that becomes root keeps its groups and
// capabilities.
func (u *User) switches() bool {
	return u != nil && (u.UID != 0 || u.groupGiven || os.Geteuid() != 0)
}

func (u *User) credential() *syscall.Credential {
	return &syscall.Credential{Uid: u.UID, Gid: u.GID, Groups: u.Groups}
}

// environ returns env with the user's HOME, USER and LOGNAME.
func (u *User) environ(env []string) []string {
	vars := []string{"HOME=" + u.Home, "USER=" + u.Name, "LOGNAME=" + u.Name}
	env = slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		return slices.ContainsFunc(vars, func(own string) bool {
			name, _, _ := strings.Cut(own, "=")
			return strings.HasPrefix(v, name+"=")
		})
	})
	return append(env, vars...)
}

// AccessError says that a directory cannot be used by the user who is to run the command.
type AccessError struct {
	// Path is the directory that was asked for.
	Path string
	// At is the first directory on the way to it, or itself, at which it failed.
	At string
	// User is the user's name, "" for the caller.
	User string
	// Err is the kernel's answer: ENOENT, ENOTDIR, EACCES, EIO...
	Err error
}

func (e *AccessError) Error() string {
	who := ""
	if e.User != "" {
		who = " as user " + e.User
	}
	at := ""
	if e.At != e.Path {
		at = e.At + ": "
	}
	return fmt.Sprintf("enter %s%s: %s%v", e.Path, who, at, e.Err)
}

func (e *AccessError) Unwrap() error { return e.Err }

// CheckDirectories asks the kernel whether u, or the caller if u is nil, can enter each of the directories, before
// anything is made for the command. The error is an [*AccessError] for the first one that cannot be entered, or says
// that this process may not act as u.
func CheckDirectories(u *User, dirs ...string) error {
	return thread.Run(func() error {
		if err := unix.Unshare(unix.CLONE_FS); err != nil {
			return fmt.Errorf("unshare the working directory: %w", err)
		}
		// Opened before the switch: the user need not be able to enter the caller's own directory.
		start, err := unix.Open(".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return pathError("open", ".", err)
		}
		defer unix.Close(start)
		who := ""
		if u.switches() {
			who = u.Name
			if err := u.assumeForFiles(); err != nil {
				return fmt.Errorf("act as user %s: %w", u.Name, err)
			}
		}
		for _, dir := range dirs {
			if err := unix.Chdir(dir); err != nil {
				return &AccessError{Path: dir, At: firstBarrier(start, dir, err), User: who, Err: err}
			}
			if !filepath.IsAbs(dir) { // the next one may be relative too
				if err := unix.Fchdir(start); err != nil {
					return pathError("fchdir", ".", err)
				}
			}
		}
		return nil
	})
}

// firstBarrier returns the shortest leading part of dir, which may be relative to start, that cannot be entered for the
// same reason.
func firstBarrier(start int, dir string, reason error) string {
	for i := 1; i < len(dir); i++ {
		if dir[i] != '/' {
			continue
		}
		if unix.Chdir(dir[:i]) == reason {
			return dir[:i]
		}
		if !filepath.IsAbs(dir) && unix.Fchdir(start) != nil {
			break
		}
	}
	return dir
}

// assumeForFiles makes the calling thread access files as u would: file system ids, groups, and (because the kernel
// takes those away with the change) no capability that overrides file permissions. Unlike the real and effective ids,
// these give u no hold on this process: permission to signal or trace it looks at the others.
func (u *User) assumeForFiles() error {
	groups := make([]int, len(u.Groups))
	for i, g := range u.Groups {
		groups[i] = int(g)
	}
	if err := unix.Setgroups(groups); err != nil {
		return fmt.Errorf("set groups: %w", err)
	}
	// setfsuid(2) reports no errors: the only way is to look at the result, with an id that is never valid.
	unix.Setfsgid(int(u.GID))
	if now, _ := unix.SetfsgidRetGid(-1); uint32(now) != u.GID {
		return fmt.Errorf("set group %d: %w", u.GID, unix.EPERM)
	}
	unix.Setfsuid(int(u.UID))
	if now, _ := unix.SetfsuidRetUid(-1); uint32(now) != u.UID {
		return fmt.Errorf("set user %d: %w", u.UID, unix.EPERM)
	}
	return nil
}
