// Package ci holds what a CI runner can use as it is: an action for GitHub, a template for GitLab, and the script that both
// call. docs/ci.md explains them, and a test runs each as the runner would.
package ci

import "embed"

// Files are those of this folder.
//
//go:embed action.yml gitlab-ci.yml sudoers thenforce-ci
var Files embed.FS
