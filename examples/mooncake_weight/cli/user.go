package cli

import (
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// switchers are programs that start another one as another user, whom an option names, or the first argument.
var switchers = map[string]struct {
	options    []string
	positional bool
}{
	"sudo": {options: []string{"-u", "--user"}}, "runuser": {options: []string{"-u", "--user"}, positional: true},
	"doas": {options: []string{"-u"}}, "setpriv": {options: []string{"--reuid", "--ruid", "--euid"}},
	"gosu": {positional: true}, "su-exec": {positional: true}, "su": {positional: true},
}

// engineUser is the user that a command changes to before it starts the engine, "" if it doesn't, or not in a way that
// can be told here. A shell's command is looked into.
func engineUser(command []string) string {
	for i, word := range command {
		if s, ok := switchers[filepath.Base(word)]; ok && (i == 0 || startsCommand(command[:i])) {
			if user := optionValue(command[i+1:], s.options); user != "" {
				return user
			}
			if s.positional && i+1 < len(command) {
				return firstArgument(command[i+1:])
			}
			if base := filepath.Base(word); base == "sudo" || base == "doas" {
				return "root"
			}
		}
		if strings.HasPrefix(word, "-") && strings.HasSuffix(word, "c") && i > 0 && i+1 < len(command) && isShell(command[i-1]) {
			if user := engineUser(strings.Fields(command[i+1])); user != "" {
				return user
			}
		}
	}
	return ""
}

// knownUser reports whether text is a user or a number, with or without a group.
func knownUser(text string) bool {
	name, _, _ := strings.Cut(text, ":")
	if _, err := strconv.ParseUint(name, 10, 32); err == nil {
		return true
	}
	_, err := user.Lookup(name)
	return name != "" && err == nil
}

// startsCommand reports whether what follows these words is run as a command: "env A=b", "nice", "exec", "a && ".
func startsCommand(before []string) bool {
	switch last := before[len(before)-1]; filepath.Base(last) {
	case "exec", "nohup", "nice", "env", "setsid", "time", "&&", "||", ";", "|":
		return true
	default:
		return strings.HasSuffix(last, ";") || strings.Contains(last, "=") && !strings.HasPrefix(last, "-")
	}
}

func isShell(word string) bool {
	switch filepath.Base(word) {
	case "sh", "bash", "dash", "ash", "zsh", "ksh":
		return true
	}
	return false
}

// optionValue is the value of one of some options: "-u x", "-ux", "--user x", "--user=x". It ends at the first argument
// that can't be an option or an option's value.
func optionValue(args, options []string) string {
	for i, a := range args {
		if a == "--" || !strings.HasPrefix(a, "-") && (i == 0 || !strings.HasPrefix(args[i-1], "-")) {
			return ""
		}
		for _, o := range options {
			long := strings.HasPrefix(o, "--")
			switch {
			case a == o && i+1 < len(args):
				return args[i+1]
			case long && strings.HasPrefix(a, o+"="):
				return a[len(o)+1:]
			case !long && strings.HasPrefix(a, o) && !strings.HasPrefix(a, "--"):
				return a[len(o):]
			}
		}
	}
	return ""
}

// firstArgument is the first word that is no option: su's, without one, is root's.
func firstArgument(args []string) string {
	for _, a := range args {
		if !strings.HasPrefix(a, "-") {
			return a
		}
	}
	return "root"
}
