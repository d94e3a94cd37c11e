//! Arguments of `shoal netram`.
//!
//! Owns: its commands, with their options and help. Left out: what they do (`netram`).

use clap::{Args, Subcommand};
use shoal_devices::size::Size;

#[derive(Debug, Subcommand)]
pub enum NetramCommand {
    /// Read everything on the donors while the disk is in use, and rewrite blocks that differ from what was sent
    Scrub(NetramScrubArgs),
    /// Move units between donors until all are evenly filled, while the disk is in use
    Rebalance(NetramRebalanceArgs),
    /// Make the disk larger, while it is in use
    Resize(NetramResizeArgs),
}

#[derive(Debug, Args)]
pub struct NetramRebalanceArgs {
    /// The address given to `shoal serve --nbd` on this machine, or a mounted store
    #[arg(value_name = "ADDRESS|STORE|MOUNTPOINT")]
    pub server: String,
    /// Start the rebalance and return; `shoal status` shows its progress
    #[arg(long)]
    pub background: bool,
    /// End a rebalance; what it moved stays where it is
    #[arg(long, conflicts_with = "background")]
    pub stop: bool,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "NBD clients see the new size when they connect again. A store on the disk uses it after its next mount \
    and `shoal resize --bulk-size`. A disk cannot shrink. Add donors first (`shoal donor add`) if there is no room."
)]
pub struct NetramResizeArgs {
    /// The address given to `shoal serve --nbd` on this machine, or a mounted store
    #[arg(value_name = "ADDRESS|STORE|MOUNTPOINT")]
    pub server: String,
    /// The new size of the disk
    pub size: Size,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct NetramScrubArgs {
    /// The address given to `shoal serve --nbd` on this machine, or a mounted store
    #[arg(value_name = "ADDRESS|STORE|MOUNTPOINT")]
    pub server: String,
    /// Start the scrub and return; `shoal status` shows its progress
    #[arg(long)]
    pub background: bool,
}
