// SPDX-License-Identifier: GPL-2.0-only
//! The files installed in a guest: by the script that `make install` runs, and by the Debian
//! packages, which a check installs there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::Failed;

const PREFIX: &str = "/usr/local";
/// Directory of the packages of this version below the prefix; the next constant is that of the
/// packages of the next version.
const DEBS: &str = "lib/usher-lab/debs";
const NEWER_DEBS: &str = "lib/usher-lab/newer-debs";
/// Files of the packages other than `usher`.
const SHIPPED: [&str; 2] = ["libusher_ompt.so", "libusher_tasks_capi.a"];
/// A further file, which exists only if the sources contain `evidence/`.
const BENCH: &str = "usher-bench";
/// Programs that build the packages, each with the Debian package that contains it.
const TOOLS: [(&str, &str); 2] = [("dh", "debhelper"), ("dpkg-buildpackage", "dpkg-dev")];

/// An installation in a temporary directory.
pub struct Tree {
    dir: tempfile::TempDir,
}

impl Tree {
    /// Installs `usher`, its units and this test program.
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

    /// Builds the Debian packages of this version and of the next one.
    pub fn add_packages(&self) -> Result<(), Failed> {
        let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let version = env!("CARGO_PKG_VERSION");
        for (folder, version) in [(DEBS, version), (NEWER_DEBS, &format!("{version}+1"))] {
            let mut build = Command::new(top.join("scripts/deb"));
            build
                .arg(built())
                .arg(version)
                .arg(self.dir.path().join("debs"));
            // No compressed debug packages are made: debug builds are large, and compression would
            // take most of the time.
            build.env("DEB_BUILD_OPTIONS", "noautodbgsym");
            build.env("DPKG_DEB_COMPRESSOR_LEVEL", "0");
            succeed(&mut build)?;
            let to = self.prefix().join(folder);
            fs::create_dir_all(&to)?;
            for file in fs::read_dir(self.dir.path().join("debs"))? {
                let file = file?.path();
                if file.extension().is_some_and(|kind| kind == "deb") {
                    fs::copy(&file, to.join(file.file_name().unwrap_or_default()))?;
                }
            }
        }
        Ok(())
    }

    /// Returns the directory that the guest mounts at `/usr/local`.
    pub fn prefix(&self) -> PathBuf {
        self.dir.path().join(&PREFIX[1..])
    }
}

/// Returns the directory with built programs.
fn built() -> &'static Path {
    let usher = Path::new(env!("CARGO_BIN_EXE_usher"));
    usher.parent().unwrap_or(usher)
}

/// Returns the reason why no packages can be built on this host; `None` if they can.
pub fn no_packages() -> Option<String> {
    let lacks = |(tool, _): &&(&str, &str)| Command::new(tool).arg("--version").output().is_err();
    if let Some((tool, package)) = TOOLS.iter().find(lacks) {
        return Some(format!("no {tool} (package {package})"));
    }
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let bench = top.join("evidence/Cargo.toml").exists().then_some(BENCH);
    let mut shipped = SHIPPED.into_iter().chain(bench);
    let missing = shipped.find(|file| !built().join(file).exists())?;
    Some(format!("{missing} is not built (make lab builds it)"))
}

/// Copies a program without its debug information, which is most of the file.
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
