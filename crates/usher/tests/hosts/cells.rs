// SPDX-License-Identifier: GPL-2.0-only
//! The program `hosts cells`: tries each feature in the environment of this process, and prints one
//! line per feature. The check of the table runs it in sessions, services and containers.

use std::process::{Child, Command, ExitCode, Stdio};

/// The features, in the order of the table's rows.
pub const FEATURES: [&str; 7] = [
    "run", "attach", "detach", "bg", "status", "explain", "sched",
];
/// Prefix of each output line.
pub const CELL: &str = "cell: ";
const USHER: &str = "/usr/local/bin/usher";

/// Tries all features and prints `cell: FEATURE: works` or `cell: FEATURE: MESSAGE` for each.
pub fn print() -> ExitCode {
    for feature in FEATURES {
        let verdict = attempt(feature).err().unwrap_or_else(|| "works".to_owned());
        println!("{CELL}{feature}: {verdict}");
    }
    ExitCode::SUCCESS
}

/// A process to be attached, killed on drop.
struct Target(Child);

impl Target {
    fn new() -> Self {
        let own = std::env::current_exe().unwrap();
        let mut command = Command::new(own);
        let quiet = command.stdin(Stdio::null()).stdout(Stdio::null());
        Self(quiet.args(["work", "1"]).spawn().unwrap())
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the message of the first command that fails, or that leaves its program unmanaged.
fn attempt(feature: &str) -> Result<(), String> {
    match feature {
        "run" | "bg" => usher(&[feature, "--", "true"]),
        "status" => usher(&["status"]),
        "sched" => {
            usher(&["sched", "start"])?;
            usher(&["sched", "stop"])
        }
        _ => {
            let target = Target::new();
            let pid = target.pid();
            let done = usher(&["attach", &pid]).and_then(|()| match feature {
                "attach" => Ok(()),
                other => usher(&[other, &pid]),
            });
            done.map_err(|message| message.replace(&pid, "PID"))
        }
    }
}

fn usher(words: &[&str]) -> Result<(), String> {
    let mut command = Command::new(USHER);
    let output = command.args(words).stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let is_unmanaged =
        |line: &&str| line.contains("unmanaged") || line.contains("at the lowest priority");
    let unmanaged = errors.lines().find(is_unmanaged);
    match (output.status.success(), unmanaged) {
        (true, None) => Ok(()),
        (true, Some(line)) => Err(line.to_owned()),
        (false, _) => Err(errors.trim().replace('\n', " / ")),
    }
}
