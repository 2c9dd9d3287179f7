// SPDX-License-Identifier: GPL-2.0-only
//! What `usher profile` and `usher mix` share: an engine of their own in this
//! process, with a keeper, and a way to be interrupted.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use usher_act::ActConfig;
use usher_host::engine::{EngineConfig, KeeperCommand};
use usher_report::table::Style;

use crate::cli::Global;
use crate::client::Daemon;
use crate::commands::usable_machine;
use crate::output::Output;
use crate::progress::Progress;
use crate::runtime;

/// An engine on this machine; should this process be killed, a keeper undoes
/// what it did.
pub fn engine_config(global: &Global) -> anyhow::Result<EngineConfig> {
    let runtime_dir = runtime::own_dir(global.runtime_dir.as_deref());
    let mut config = EngineConfig::new(usable_machine()?, ActConfig::new(runtime_dir));
    config.keeper = Some(KeeperCommand {
        exe: std::env::current_exe().context("finding Usher's own executable")?,
        subcommand: vec!["keeper".into()],
        respawn: Vec::new(),
    });
    Ok(config)
}

/// Becomes true when a signal asks to end; a second one ends at once, and the
/// keeper cleans up.
pub fn interruption() -> anyhow::Result<Arc<AtomicBool>> {
    let cancel = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let again = signal_hook::flag::register_conditional_default(signal, cancel.clone());
        again
            .and_then(|_| signal_hook::flag::register(signal, cancel.clone()))
            .context("catching signals")?;
    }
    Ok(cancel)
}

/// Says so where a daemon seats programs that will disturb.
pub fn warn_of_neighbours(global: &Global, progress: &Progress) {
    let state = Daemon::find(global.runtime_dir.as_deref()).and_then(|mut d| d.status().ok());
    let managed = state.map_or(0, |state| state.programs.len());
    if managed > 0 {
        progress.say(&format!(
            "usher: a daemon manages {managed} programs meanwhile: they disturb what is measured"
        ));
    }
}

/// Usher's OMPT tool, which tells the progress of OpenMP programs: as
/// `USHER_OMPT` says, else beside this program or where it is installed.
pub fn ompt_tool() -> Option<PathBuf> {
    const NAME: &str = "libusher_ompt.so";
    if let Some(told) = std::env::var_os("USHER_OMPT") {
        return Some(PathBuf::from(told)).filter(|path| path.is_file());
    }
    let exe = std::env::current_exe().ok()?;
    let dir = exe.parent()?;
    let places = [
        dir.join(NAME),
        dir.join("../lib/usher").join(NAME),
        dir.join("../lib").join(NAME),
    ];
    places.into_iter().find(|path| path.is_file())
}

/// The terminal, as the tables want to know it.
pub fn style(out: Output) -> Style {
    Style {
        colour: out.color,
        width: out
            .is_terminal()
            .then(|| u16::try_from(out.width()).unwrap_or(u16::MAX)),
    }
}
