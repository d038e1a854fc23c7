// Package thread runs functions that change what the kernel keeps for each thread: root and working directory, mount
// namespace, file system ids, capabilities. Linux only; on other systems the package is empty.
package thread
