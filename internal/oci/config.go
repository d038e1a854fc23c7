package oci

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"
)

// Config is /etc/thenforce/hook.yaml. Its zero value, apart from Policy, is the strict choice.
type Config struct {
	Version int `yaml:"version"`
	// Policy names a file in the folder of policies, without ".yaml". Paths in it are those of the container.
	Policy string `yaml:"policy"`
	// Containers says which containers the hook is about: "all" (the default), or "annotated" for those that have an
	// annotation of thenforce's.
	Containers string `yaml:"containers"`
	// AllowAnnotations lists the annotations, by what follows "io.thenforce.", by which a container's author may
	// also widen what the host decided.
	AllowAnnotations []string `yaml:"allowAnnotations"`
	// AllowUnverified lets containers start where enforcement is not verified.
	AllowUnverified bool `yaml:"allowUnverified"`
	// Timeout bounds the making of a jail, once enforcement is found verified. 0 is DefaultTimeout.
	Timeout time.Duration `yaml:"timeout"`
}

// DefaultTimeout is many times what making a jail takes.
const DefaultTimeout = 5 * time.Second

// Annotations that a container may have.
const (
	annotationPrefix = "io.thenforce."

	Workspace       = "workspace"
	Policy          = "policy"
	Mode            = "mode"
	AllowUnverified = "allow-unverified"
)

var annotations = []string{Workspace, Policy, Mode, AllowUnverified}

// nameLetters are those of policies and jails.
const nameLetters = "abcdefghijklmnopqrstuvwxyz0123456789._-"

func isPolicyName(name string) bool {
	return name != "" && !strings.ContainsRune("._-", rune(name[0])) && strings.Trim(name, nameLetters) == ""
}

// ParseConfig reads the text of hook.yaml. Fields that are unknown, twice there or of the wrong type are errors that
// name the line.
func ParseConfig(text []byte) (Config, error) {
	var c Config
	if err := yaml.Load(text, &c, yaml.WithKnownFields(), yaml.WithUniqueKeys()); err != nil {
		return Config{}, err
	}
	switch {
	case c.Version != 1:
		return Config{}, fmt.Errorf("version: %d is not known; write \"version: 1\"", c.Version)
	case c.Policy != "" && !isPolicyName(c.Policy):
		return Config{}, fmt.Errorf("policy: %q is no name of a policy: use a-z 0-9 . _ -", c.Policy)
	case !slices.Contains([]string{"", "all", "annotated"}, c.Containers):
		return Config{}, fmt.Errorf("containers: %q is neither all nor annotated", c.Containers)
	case c.Timeout < 0:
		return Config{}, fmt.Errorf("timeout: %v is below 0", c.Timeout)
	}
	for _, name := range c.AllowAnnotations {
		if !slices.Contains(annotations, name) {
			return Config{}, fmt.Errorf("allowAnnotations: %q is none of %s", name, strings.Join(annotations, ", "))
		}
	}
	if c.Policy == "" && !slices.Contains(c.AllowAnnotations, Policy) {
		return Config{}, errors.New("policy: is missing: name a file in the folder of policies")
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	return c, nil
}

// Settings are what counts for one container.
type Settings struct {
	// Skip: the container is none that the hook is about.
	Skip bool
	// Policy is the name of the policy.
	Policy string
	// AllowUnverified lets the container start where enforcement is not verified.
	AllowUnverified bool
	// Timeout is that of the Config.
	Timeout time.Duration

	workspace, mode string // annotations; "" where there is none
	allowed         []string
}

// An AnnotationError says which annotation of a container is at fault.
type AnnotationError struct {
	Name, Value string
	Err         error
}

func (e *AnnotationError) Error() string {
	return fmt.Sprintf("annotation %s%s=%q: %v", annotationPrefix, e.Name, e.Value, e.Err)
}

func (e *AnnotationError) Unwrap() error { return e.Err }

// widens refuses what only the host may decide.
func widens(what string) error {
	return fmt.Errorf("%s; list it under allowAnnotations in the host's hook.yaml if containers may", what)
}

// For says what counts for a container with these annotations. An annotation of thenforce's that is unknown is an error:
// its author relies on it.
func (c Config) For(all map[string]string) (Settings, error) {
	s := Settings{Policy: c.Policy, AllowUnverified: c.AllowUnverified, Timeout: c.Timeout, allowed: c.AllowAnnotations}
	wishes := map[string]string{}
	for key, value := range all {
		name, ok := strings.CutPrefix(key, annotationPrefix)
		if !ok {
			continue
		}
		if !slices.Contains(annotations, name) {
			return s, &AnnotationError{name, value, fmt.Errorf("is unknown; there are %s", strings.Join(annotations, ", "))}
		}
		wishes[name] = value
	}
	if c.Containers == "annotated" && len(wishes) == 0 {
		return Settings{Skip: true}, nil
	}
	if value, ok := wishes[Policy]; ok && value != c.Policy {
		switch {
		case !c.allows(Policy):
			return s, &AnnotationError{Policy, value, widens("the host decides which policy counts")}
		case !isPolicyName(value):
			return s, &AnnotationError{Policy, value, errors.New("is no name of a policy: use a-z 0-9 . _ -")}
		}
		s.Policy = value
	}
	if s.Policy == "" {
		return s, fmt.Errorf("annotation %s%s is missing: it has to name the policy, as the host's hook.yaml names none", annotationPrefix, Policy)
	}
	if value, ok := wishes[AllowUnverified]; ok {
		yes, err := strconv.ParseBool(value)
		switch {
		case err != nil:
			return s, &AnnotationError{AllowUnverified, value, errors.New("use true or false")}
		case yes && !c.AllowUnverified && !c.allows(AllowUnverified):
			return s, &AnnotationError{AllowUnverified, value, widens("the host starts nothing that is not verified to be confined")}
		}
		s.AllowUnverified = yes
	}
	s.workspace, s.mode = wishes[Workspace], wishes[Mode]
	return s, nil
}

func (c Config) allows(name string) bool { return slices.Contains(c.AllowAnnotations, name) }

func (s Settings) allows(name string) bool { return slices.Contains(s.allowed, name) }
