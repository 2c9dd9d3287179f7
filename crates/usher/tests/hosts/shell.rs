// SPDX-License-Identifier: GPL-2.0-only
//! Login sessions of root and of users in a guest. [`Shell`] starts `su -l`, whose PAM session
//! makes logind and systemd create a session scope and a user manager.
//!
//! A command is one line to the shell's standard input. After the command, the shell prints a mark
//! with the exit status; the output up to the mark is the output of the command. A wait for the
//! mark has no time limit here: the time limit of the guest ends a test that hangs.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A login shell in a session of its own. pam_systemd puts the shell into `session-N.scope` of the
/// user's slice and starts the user's service manager. Dropping the value logs the user out.
pub struct Shell {
    user: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// The result of a command.
#[derive(Debug)]
pub struct ShellOutput {
    pub status: i32,
    /// Standard output and standard error together.
    pub text: String,
}

impl ShellOutput {
    /// Returns the output of a command that must succeed.
    pub fn ok(self) -> String {
        assert_eq!(self.status, 0, "{}", self.text);
        self.text
    }

    /// Returns the output of a command that must be refused in one line.
    pub fn refused(self) -> String {
        assert_ne!(self.status, 0, "{}", self.text);
        assert_eq!(self.text.trim().lines().count(), 1, "{}", self.text);
        self.text
    }
}

const END: &str = "--end-of-answer--";

impl Shell {
    /// Logs a user in.
    pub fn of(user: &str) -> Self {
        let mut child = Command::new("su")
            .args(["-l", user, "-c", "exec bash 2>&1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            user: user.to_owned(),
            child,
            input,
            output,
        }
    }

    /// Returns the prompt of an interactive shell of this user.
    pub fn prompt(&self) -> String {
        let end = if self.user == "root" { '#' } else { '$' };
        format!("{}@usherlab:~{end} ", self.user)
    }

    /// Runs a command line to its end.
    pub fn run(&mut self, line: &str) -> ShellOutput {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{line}\necho \"{END}$?\"").unwrap();
        let mut text = String::new();
        loop {
            let mut line = String::new();
            let bytes = self.output.read_line(&mut line).unwrap();
            assert_ne!(bytes, 0, "the shell has ended: {text}");
            if let Some((before, status)) = line.split_once(END) {
                text.push_str(before);
                let status = status.trim().parse().unwrap();
                return ShellOutput { status, text };
            }
            text.push_str(&line);
        }
    }

    /// Starts a command in the background; its messages go to a log. Returns its pid.
    pub fn start(&mut self, line: &str) -> i32 {
        let started = self.run(&format!(
            "{line} </dev/null >>/var/tmp/messages-$USER 2>&1 & echo $!"
        ));
        let text = started.ok();
        // Lines that are no pid are skipped, because the shell may report killed jobs.
        let mut pids = text.lines().filter_map(|line| line.parse().ok());
        pids.next().unwrap()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Runs a command line as root, in the service that runs the job.
pub fn root(line: &str) -> ShellOutput {
    let output = Command::new("bash")
        .args(["-c", line])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    ShellOutput {
        status: output.status.code().unwrap_or(-1),
        text,
    }
}
