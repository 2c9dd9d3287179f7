// SPDX-License-Identifier: GPL-2.0-only
//! Records commands with their output as a Markdown document, and prints it line by line with a
//! prefix by which the host finds the document in the guest's output.

use crate::shell::{Shell, ShellOutput};

/// Prefix of each line of the document in the output of a guest.
pub const LINE: &str = "docs/guest-session.md: ";

/// A document that is being recorded.
pub struct Log {
    text: String,
    in_code: bool,
}

impl Log {
    pub fn new(head: &str) -> Self {
        Self {
            text: head.to_owned(),
            in_code: false,
        }
    }

    pub fn title(&mut self, title: &str) {
        self.text(&format!("## {title}"));
    }

    pub fn text(&mut self, text: &str) {
        if std::mem::take(&mut self.in_code) {
            self.text.push_str("```\n");
        }
        self.text.push_str(&format!("\n{text}\n"));
    }

    fn command(&mut self, shell: &Shell, line: &str) {
        if !std::mem::replace(&mut self.in_code, true) {
            self.text.push_str("\n```console\n");
        }
        self.text.push_str(&format!("{}{line}\n", shell.prompt()));
    }

    /// Runs a command.
    pub fn run(&mut self, shell: &mut Shell, line: &str) -> ShellOutput {
        self.command(shell, line);
        let answer = shell.run(line);
        for line in answer.text.lines() {
            // Only the text after the last carriage return is recorded: a terminal shows only the
            // last version of a line that overwrites itself.
            let shown = line.trim_end().rsplit('\r').next().unwrap_or_default();
            self.text.push_str(shown);
            self.text.push('\n');
        }
        answer
    }

    /// Starts a command in the background. Returns its pid.
    pub fn start(&mut self, shell: &mut Shell, line: &str) -> i32 {
        self.command(shell, &format!("{line} &"));
        let pid = shell.start(line);
        self.text.push_str(&format!("[{pid}]\n"));
        pid
    }

    /// Prints the document for the host.
    pub fn print(mut self) {
        if std::mem::take(&mut self.in_code) {
            self.text.push_str("```\n");
        }
        // Ends the line that the test harness has begun.
        println!();
        for line in self.text.lines() {
            println!("{LINE}{line}");
        }
    }
}
