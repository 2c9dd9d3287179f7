// SPDX-License-Identifier: MIT OR Apache-2.0
//! Builds the product disk of a guest with systemd. It contains the files that are installed at
//! `/usr/local`, the kernel's configuration, and a shell script that runs the job and writes its
//! output and exit status to a serial line. The disk has 512 MiB; a tree that does not fit is an
//! error. Without a time limit, the build takes time in proportion to the size of the tree.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::LabError;
use crate::apt::run;
use crate::kernels::Kernel;

/// The folder of the lab's own files in `/usr/local`.
const OWN: &str = "lib/usher-lab";
/// The serial line for the job's output. A virtio port would need a kernel module in Debian 12, and
/// the guest has no modules.
const PORT: &str = "/dev/ttyS1";
/// Beginning of the last line of the output. The rest of the line is the exit status.
pub(super) const LAST_LINE: &str = "usher-lab: the job exited with ";

/// A disk in a temporary folder, which is removed on drop.
#[derive(Debug)]
pub(super) struct Disk {
    dir: TempDir,
}

impl Disk {
    /// Builds the disk from an installed tree and the command of the job.
    pub(super) fn build(tree: &Path, kernel: &Kernel, job: &[String]) -> Result<Self, LabError> {
        let dir = TempDir::new().map_err(LabError::io("creating a temporary directory"))?;
        let disk = Self { dir };
        let root = disk.dir.path().join("root");
        let own = root.join(OWN);
        let mut copy = Command::new("cp");
        run(
            "copying the installed files",
            copy.arg("-a").arg(tree).arg(&root),
        )?;
        fs::create_dir_all(&own).map_err(LabError::file("making", &own))?;
        let config = own.join("config");
        fs::copy(kernel.config(), &config).map_err(LabError::file("writing", &config))?;
        let script = own.join("job");
        fs::write(&script, script_of(job)).map_err(LabError::file("writing", &script))?;
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755))
            .map_err(LabError::file("making executable", &script))?;
        let mut make = Command::new("mke2fs");
        let make = make.args(["-q", "-t", "ext4", "-d"]).arg(&root);
        run(
            "building the disk with the installed files of Usher",
            make.arg(disk.path()).arg("512M"),
        )?;
        fs::remove_dir_all(&root).map_err(LabError::file("removing", &root))?;
        Ok(disk)
    }

    pub(super) fn path(&self) -> PathBuf {
        self.dir.path().join("disk")
    }
}

/// Returns a shell script that runs the command, and writes its output and then its exit status to
/// the serial line. If the command ends because the guest reboots, the script writes no exit
/// status.
fn script_of(job: &[String]) -> String {
    let words: Vec<String> = job.iter().map(|word| quoted(word)).collect();
    // The process that opens the serial line is no session leader. Otherwise the line would become
    // the controlling terminal of the job.
    format!(
        "#!/bin/sh\nstty -F {PORT} raw\n{{\n{}\nstatus=$?\n\
         [ \"$(systemctl is-system-running)\" = stopping ] || echo \"{LAST_LINE}$status\"\n\
         }} 2>&1 | cat >{PORT}\n",
        words.join(" ")
    )
}

/// Returns a word in quotation marks for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shells_read_words_back_unchanged() {
        let words = ["a b", "it's", "$HOME", ""];
        let line: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        let mut shell = Command::new("sh");
        let script = format!("printf '%s|' {}", line.join(" "));
        let read = run("asking a shell", shell.args(["-c", &script])).unwrap();
        assert_eq!(read, "a b|it's|$HOME||");
    }
}
