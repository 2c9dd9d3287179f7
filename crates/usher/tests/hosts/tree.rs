// SPDX-License-Identifier: GPL-2.0-only
//! What is installed in a guest: by the script that `make install` runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Failed;

const PREFIX: &str = "/usr/local";

/// An installation in a temporary folder.
pub struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    /// Installs `usher`, its units and this program.
    pub fn install() -> Result<Self, Failed> {
        let dir = tempfile::tempdir()?;
        let tree = dir.path().join("tree");
        for folder in ["bin", "lib/systemd", "lib/usher-lab"] {
            fs::create_dir_all(tree.join(folder))?;
        }
        strip(
            Path::new(env!("CARGO_BIN_EXE_usher")),
            &tree.join("bin/usher"),
        )?;
        strip(&std::env::current_exe()?, &tree.join("lib/usher-lab/hosts"))?;
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for manager in ["system", "user"] {
            let to = tree.join("lib/systemd").join(manager);
            fs::create_dir(&to)?;
            let unit = top.join("integrations/systemd").join(manager);
            fs::copy(unit.join("usher.service"), to.join("usher.service"))?;
        }
        let mut put = Command::new(top.join("scripts/install"));
        put.arg("put").arg(&tree).arg(PREFIX).arg(dir.path());
        succeed(&mut put)?;
        Ok(Self { dir })
    }

    /// The folder that the guest has at `/usr/local`.
    pub fn prefix(&self) -> PathBuf {
        self.dir.path().join(&PREFIX[1..])
    }
}

/// Copies a program without its debug information, which is most of it.
fn strip(from: &Path, to: &Path) -> Result<(), Failed> {
    succeed(Command::new("strip").arg("-o").arg(to).arg(from))
}

fn succeed(command: &mut Command) -> Result<(), Failed> {
    let output = command.output()?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let error = String::from_utf8_lossy(&output.stderr);
            Err(Failed::from(format!("{command:?}: {error}")))
        }
    }
}
