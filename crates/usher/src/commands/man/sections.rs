// SPDX-License-Identifier: GPL-2.0-only
//! The sections of manual pages that clap does not provide: exit status, environment, files, and
//! examples for commands without examples of their own. The lists of environment variables and
//! files are maintained here by hand.

use clap_mangen::roff::{Roff, bold, roman};

/// Commands that run a program and return its exit status.
const PASS_STATUS: &[&str] = &["usher run", "usher bg", "usher sched stats"];
/// Commands that run programs.
const RUN_PROGRAMS: &[&str] = &[
    "usher run",
    "usher bg",
    "usher mix",
    "usher profile",
    "usher sched stats",
];
/// Commands that give a program a heartbeat page and the OpenMP tool.
const GIVE_PAGES: &[&str] = &["usher run", "usher bg", "usher mix", "usher profile"];
/// Commands that use the socket, the journal or the scheduler's record in the runtime directory.
const USE_RUNTIME_DIR: &[&str] = &[
    "usher run",
    "usher bg",
    "usher attach",
    "usher detach",
    "usher status",
    "usher top",
    "usher explain",
    "usher daemon",
    "usher undo",
    "usher doctor",
    "usher mix",
    "usher profile",
    "usher sched",
];

/// A term of a list with its description.
type Entry = (&'static str, &'static str);

const ENVIRONMENT: &[Entry] = &[
    (
        "NO_COLOR, CLICOLOR, CLICOLOR_FORCE",
        "Whether the output is coloured, unless --color is given.",
    ),
    (
        "LC_ALL, LC_CTYPE, LANG",
        "The locale. In a locale without UTF-8, drawings use ASCII.",
    ),
    ("USHER_RUNTIME_DIR", "The same as --runtime-dir."),
    (
        "XDG_RUNTIME_DIR",
        "The runtime directory of users other than root is the folder usher in it.",
    ),
];
const STORE_ENVIRONMENT: &[Entry] = &[
    ("USHER_STORE", "The same as --store."),
    (
        "XDG_DATA_HOME, HOME",
        "The profile store of users other than root is below $XDG_DATA_HOME, or else below $HOME/.local/share.",
    ),
];
const PAGE_ENVIRONMENT: &[Entry] = &[
    (
        "USHER_HEARTBEAT",
        "The heartbeat page of the program. Usher makes a page and sets the variable, unless it is set.",
    ),
    (
        "USHER_OMPT",
        "The OpenMP tool libusher_ompt.so, if it is not at the installed place.",
    ),
];
const RUNTIME_FILES: &[Entry] = &[
    (
        "/run/usher",
        "The runtime directory of root and of the system's service. That of other users is \
         $XDG_RUNTIME_DIR/usher, or else /run/user/UID/usher, or else /tmp/usher-UID.",
    ),
    (
        "usher.varlink",
        "The daemon's socket in the runtime directory.",
    ),
    (
        "instances/PID-START/journal.jsonl",
        "The undo of each change, in the runtime directory.",
    ),
];
const SCHED_FILES: &[Entry] = &[(
    "sched.dump",
    "The kernel's dump of a scheduler that it ended, in the runtime directory.",
)];
const STORE_FILES: &[Entry] = &[
    (
        "/var/lib/usher/profiles.db",
        "The profile store of root. That of other users is usher/profiles.db below \
         $XDG_DATA_HOME or ~/.local/share.",
    ),
    (
        "thresholds.toml",
        "Thresholds of background work beside the profile store, written by usher bench calibrate.",
    ),
];

/// The exit status of a command, for pages without an own section about it.
pub fn exit_status(name: &str) -> Roff {
    let mut section = heading("EXIT STATUS");
    let passes = is_listed(PASS_STATUS, name);
    let success = match passes {
        true => "That of the program; 128+N where signal N ended it.",
        false => "Success.",
    };
    entry(&mut section, if passes { "STATUS" } else { "0" }, success);
    entry(
        &mut section,
        "125",
        "Usher failed. One line on standard error gives the reason.",
    );
    if is_listed(RUN_PROGRAMS, name) {
        entry(&mut section, "126", "The program cannot be executed.");
        entry(&mut section, "127", "The program does not exist.");
    }
    section
}

/// The environment variables that a command reads.
pub fn environment(command: &clap::Command, name: &str) -> Roff {
    let mut section = heading("ENVIRONMENT");
    let pages: &[Entry] = match is_listed(GIVE_PAGES, name) {
        true => PAGE_ENVIRONMENT,
        false => &[],
    };
    let store: &[Entry] = match uses_store(command) {
        true => STORE_ENVIRONMENT,
        false => &[],
    };
    for (term, text) in ENVIRONMENT.iter().chain(store).chain(pages) {
        entry(&mut section, term, text);
    }
    section
}

/// The files that a command uses.
pub fn files(command: &clap::Command, name: &str) -> Roff {
    let groups: [(bool, &[Entry]); 3] = [
        (is_listed(USE_RUNTIME_DIR, name), RUNTIME_FILES),
        (is_listed(&["usher sched"], name), SCHED_FILES),
        (uses_store(command), STORE_FILES),
    ];
    let used = groups.iter().filter(|(is_used, _)| *is_used);
    let mut entries = used.flat_map(|(_, entries)| *entries).peekable();
    let mut section = heading("FILES");
    if entries.peek().is_none() {
        section.text([roman("Only the files that its arguments name.")]);
    }
    for (term, text) in entries {
        entry(&mut section, term, text);
    }
    section
}

/// The lines of other pages' examples that show the command, or else a request for its help.
pub fn examples(name: &str, others: &[String]) -> Roff {
    let of_command = |line: &&String| {
        let words = line.strip_prefix(name);
        words.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    let mut lines: Vec<String> = others.iter().filter(of_command).cloned().collect();
    if lines.is_empty() {
        lines.push(format!("{name} --help"));
    }
    let mut section = heading("EXAMPLES");
    section.control("nf", []);
    for line in lines {
        section.text([roman(line)]);
    }
    section.control("fi", []);
    section
}

/// Whether the list has the command or one above it. The page of `usher` covers all commands.
fn is_listed(list: &[&str], name: &str) -> bool {
    let above = |listed: &str| {
        let rest = name.strip_prefix(listed);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    name == "usher" || list.iter().any(|listed| above(listed))
}

fn uses_store(command: &clap::Command) -> bool {
    let has_option = |arg: &clap::Arg| arg.get_long() == Some("store");
    command.get_name() == "usher" || command.get_arguments().any(has_option)
}

fn heading(text: &str) -> Roff {
    let mut section = Roff::new();
    section.control("SH", [text]);
    section
}

fn entry(section: &mut Roff, term: &str, text: &str) {
    section.control("TP", []);
    section.text([bold(term)]);
    section.text([roman(text)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(section: &Roff) -> String {
        section.to_roff().replace("\\-", "-")
    }

    #[test]
    fn commands_that_run_programs_return_their_exit_status() {
        assert!(plain(&exit_status("usher run")).contains("128+N"));
        assert!(plain(&exit_status("usher sched stats")).contains("127"));
        let other = plain(&exit_status("usher sched stop"));
        assert!(!other.contains("128+N") && other.contains("125"));
    }

    #[test]
    fn commands_with_a_store_name_its_file_and_variable() {
        let with = clap::Command::new("run").arg(clap::Arg::new("path").long("store"));
        assert!(plain(&files(&with, "usher run")).contains("profiles.db"));
        assert!(plain(&environment(&with, "usher run")).contains("USHER_STORE"));
        let without = clap::Command::new("topo");
        assert!(plain(&files(&without, "usher topo")).contains("Only the files"));
        assert!(!plain(&environment(&without, "usher topo")).contains("USHER_STORE"));
    }

    #[test]
    fn examples_come_from_other_pages_or_are_a_request_for_help() {
        let others = [
            "usher sim casas --out report".to_owned(),
            "usher sim casasx".to_owned(),
        ];
        let section = plain(&examples("usher sim casas", &others));
        assert!(section.contains("--out report") && !section.contains("casasx"));
        assert!(plain(&examples("usher x", &others)).contains("usher x --help"));
    }
}
