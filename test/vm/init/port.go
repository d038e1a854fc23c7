//go:build linux

package main

import (
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// openPort opens a serial port as a channel of plain bytes.
func openPort(name string) (*os.File, error) {
	// O_NOCTTY: a serial port would become the controlling terminal of whoever
	// opens it first.
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	t, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "get terminal settings", Path: name, Err: err}
	}
	// What cfmakeraw(3) does.
	t.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	t.Oflag &^= unix.OPOST
	t.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	t.Cflag &^= unix.CSIZE | unix.PARENB | unix.CBAUD
	t.Cflag |= unix.CS8 | unix.CLOCAL | unix.B115200
	t.Cc[unix.VMIN], t.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, t); err != nil {
		unix.Close(fd)
		return nil, &fs.PathError{Op: "set terminal settings", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// drain waits until everything written has been sent; tcdrain(3).
func drain(port *os.File) error {
	if err := unix.IoctlSetInt(int(port.Fd()), unix.TCSBRK, 1); err != nil {
		return &fs.PathError{Op: "drain", Path: port.Name(), Err: err}
	}
	return nil
}
