//go:build linux

package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// winePackages are what runs programs of Windows. Wine 8 of bookworm cannot run
// those of today's Go: it has no bcryptprimitives.dll.
var winePackages = []string{"wine", "wine64"}

// wineScript installs the packages and makes Windows' drive C:, which takes
// longer than the tests. Neither .NET nor a browser engine goes into it. Drive T:
// is the folder /temporary, for temporary files.
const wineScript = `set -eu
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
apt-get -q update
apt-get -q install --yes --no-install-recommends "$@"
rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb
export HOME=/root WINEDEBUG=-all WINEDLLOVERRIDES=mscoree,mshtml=
wineboot --init
for name in TEMP TMP; do wine reg add 'HKCU\Environment' /v "$name" /d 'T:\' /f; done
wineserver --wait
mkdir /temporary
ln -s /temporary /root/.wine/dosdevices/t:
test -s /root/.wine/system.reg
`

// Wine returns a folder with a Debian that runs programs of Windows, for a
// chroot, making it when missing: as root of the host, in three minutes. Nobody
// may write into it.
func (c *Cache) Wine(ctx context.Context) (string, error) {
	sum := sha256.Sum256([]byte(rootSuite + "\n" + wineScript + dpkgConfig + strings.Join(winePackages, " ")))
	dir := filepath.Join(c.dir, "wine")
	name := filepath.Join(dir, hex.EncodeToString(sum[:6]))
	return name, c.make(name, func() error { return c.makeWine(ctx, dir, name) })
}

func (c *Cache) makeWine(ctx context.Context, dir, name string) error {
	fmt.Fprintln(c.log, "making the root with wine; takes three minutes, once")
	// Older roots go, and what is left of an attempt that was killed.
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	tree := filepath.Join(dir, "new")
	if err := c.bootstrap(ctx, tree, winePackages, wineScript); err != nil {
		return errors.Join(err, os.RemoveAll(tree))
	}
	return os.Rename(tree, name)
}
