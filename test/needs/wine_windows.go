package needs

import "golang.org/x/sys/windows"

// Wine reports whether this is Windows as wine has it.
func Wine() bool {
	return windows.NewLazySystemDLL("ntdll.dll").NewProc("wine_get_version").Find() == nil
}
