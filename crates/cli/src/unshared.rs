//! Experiments in mount and process namespaces of their own.
//!
//! Owns: [`go_on_alone`], which runs this program again in such namespaces. The kernel then removes
//! every mount and ends every process of the experiment, however this process ends. Rules: it is
//! done once, and only by root, as the kernel demands; a process that already is alone goes on. Left
//! out: the removal at an ordinary end, which the experiment does itself.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::unistd::geteuid;

/// Set for a process that is in namespaces of its own; also by `tests/alone`.
const ALONE: &str = "SHOAL_ALONE";
/// The first process of a process namespace ignores signals that it has no handler for, and reaps
/// orphans. The shell is made for that; Ctrl-C then ends the experiment. The names of network
/// namespaces are files, which would stay without a directory of their own.
const FIRST: &str = "mkdir -p /run/netns && mount -t tmpfs lab /run/netns; \"$@\"; exit $?";

/// Goes on as another process in namespaces of its own. Returns only if that is not possible or not
/// necessary.
pub fn go_on_alone() {
    let Ok(program) = std::env::current_exe() else { return };
    if std::env::var_os(ALONE).is_some() || !geteuid().is_root() {
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", FIRST, "shoal-lab"]);
    let error = command.arg(program).args(std::env::args_os().skip(1)).env(ALONE, "1").exec();
    eprintln!("shoal: lab: unshare: {error}; what the experiment makes outlives it if it is killed");
}
