// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rule: every source file starts with the SPDX line of its crate's licence, and the crate's
//! manifest states the same licence. Code that runs in the kernel or links its GPL-only interfaces
//! is GPL-2.0-only. The plugin that Slurm loads has Slurm's licence, GPL-2.0-or-later.

use crate::{Breach, File, Tree};

const PERMISSIVE: &str = "MIT OR Apache-2.0";
const GPL: &str = "GPL-2.0-only";

/// Licence of headers that are included by programs in the kernel and by programs outside the
/// kernel.
const SHARED: &str = "GPL-2.0-only OR MIT";
/// Folders of programs that run in the kernel, and of their headers.
const KERNEL_FOLDER: &str = "/src/bpf/";
/// Folders of code that links GPL-only interfaces of the kernel, and of the programs that link such
/// code.
const GPL_FOLDERS: [&str; 3] = ["crates/usher/", "crates/scx/", "bpf/"];

/// Folder of the plugin that Slurm loads, whose C sources have Slurm's licence.
const SLURM_FOLDER: &str = "integrations/slurm/";
const SLURM: &str = "GPL-2.0-or-later";

const SOURCES: [&str; 8] = ["rs", "c", "h", "cpp", "py", "sh", "bash", "awk"];

/// Returns a breach for each source file without the expected licence line, and for each manifest
/// with another licence.
pub fn check(tree: &Tree) -> Vec<Breach> {
    let sources = tree
        .files
        .iter()
        .filter(|file| is_source(file))
        .filter_map(check_source);
    let manifests = tree
        .files
        .iter()
        .filter(|file| file.crate_name().is_some() && file.path.ends_with("/Cargo.toml"))
        .filter_map(check_manifest);
    sources.chain(manifests).collect()
}

fn is_source(file: &File) -> bool {
    SOURCES
        .iter()
        .any(|extension| file.has_extension(extension))
        || file.path == "Makefile"
        || file.text.starts_with("#!")
}

fn expected(path: &str) -> &'static str {
    if path.contains(KERNEL_FOLDER) {
        return match path.ends_with(".h") {
            true => SHARED,
            false => GPL,
        };
    }
    if path.starts_with(SLURM_FOLDER) && (path.ends_with(".c") || path.ends_with(".h")) {
        return SLURM;
    }
    match GPL_FOLDERS.iter().any(|folder| path.starts_with(folder)) {
        true => GPL,
        false => PERMISSIVE,
    }
}

fn check_source(file: &File) -> Option<Breach> {
    let (number, line) = file
        .lines()
        .find(|(_, line)| !line.starts_with("#!/"))
        .unwrap_or((1, ""));
    let wanted = format!("SPDX-License-Identifier: {}", expected(&file.path));
    let stated = line
        .trim_start_matches(['/', '#', '*', ' '])
        .trim_end_matches("*/")
        .trim_end();
    (stated != wanted).then(|| {
        Breach::new(
            &file.path,
            number,
            format!("start the file with `{wanted}`"),
        )
    })
}

fn check_manifest(file: &File) -> Option<Breach> {
    let licence = expected(&file.path);
    let wanted = match licence {
        PERMISSIVE => "license.workspace = true".to_owned(),
        _ => format!("license = \"{licence}\""),
    };
    let states = file.lines().any(|(_, line)| line.trim() == wanted);
    (!states).then(|| Breach::new(&file.path, 0, format!("missing `{wanted}`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_names_its_crates_licence() {
        let good = "// SPDX-License-Identifier: MIT OR Apache-2.0\n";
        let gpl = "// SPDX-License-Identifier: GPL-2.0-only\n";
        let script = "#!/bin/sh\n# SPDX-License-Identifier: MIT OR Apache-2.0\n";
        let header = "/* SPDX-License-Identifier: MIT OR Apache-2.0 */\n";
        let shared = "/* SPDX-License-Identifier: GPL-2.0-only OR MIT */\n";
        let slurm = "// SPDX-License-Identifier: GPL-2.0-or-later\n";
        let tree = Tree::of(&[
            ("crates/model/src/lib.rs", good),
            ("crates/usher/src/main.rs", gpl),
            ("crates/heartbeat/usher.h", header),
            ("crates/meter/src/bpf/a.bpf.c", gpl),
            ("crates/meter/src/bpf/a.h", shared),
            ("scripts/setup", script),
            ("integrations/slurm/a.c", slurm),
            ("integrations/slurm/other.c", gpl),
            ("notes.txt", "no source"),
            ("crates/model/src/bare.rs", "fn a() {}\n"),
            ("crates/model/src/empty.rs", ""),
            ("crates/model/src/other.rs", gpl),
            ("crates/usher/src/other.rs", good),
            ("crates/meter/src/bpf/other.h", gpl),
            ("crates/meter/src/bpf/other.bpf.c", shared),
            ("scripts/bare", "#!/bin/sh\ntrue\n"),
            ("crates/model/Cargo.toml", "license.workspace = true"),
            ("crates/usher/Cargo.toml", "license.workspace = true"),
        ]);
        let found: Vec<(String, usize)> = check(&tree)
            .into_iter()
            .map(|breach| (breach.path, breach.line))
            .collect();
        let expected = [
            ("integrations/slurm/other.c", 1),
            ("crates/model/src/bare.rs", 1),
            ("crates/model/src/empty.rs", 1),
            ("crates/model/src/other.rs", 1),
            ("crates/usher/src/other.rs", 1),
            ("crates/meter/src/bpf/other.h", 1),
            ("crates/meter/src/bpf/other.bpf.c", 1),
            ("scripts/bare", 2),
            ("crates/usher/Cargo.toml", 0),
        ];
        assert_eq!(found, expected.map(|(path, line)| (path.to_owned(), line)));
    }
}
