//! The command line: every option with its name, its help and its type.
//!
//! Manual pages and completions are generated from these definitions. Commands whose report is
//! useful to programs take `--json`. The module of each command explains its options; the fstab
//! options are in `option_table`.
//!
//! Longer than 500 lines because it is one table with a few lines for each option, and readers look
//! up single options.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use shoal_devices::DeviceName;
use shoal_devices::lend::Allow;
use shoal_devices::size::Size;
use shoal_fs::Method;
use shoal_nbd::Listen;
use shoal_netram::donor::Compression;
use shoal_store::{BulkChoice, MemoryChoice};

use crate::lab::Words;
use crate::option_table;

#[derive(Debug, Parser)]
#[command(
    name = "shoal",
    version,
    about = "A file system for trees of many small files, as fast as memory and as durable as a disk",
    after_help = "Examples:\n  \
        shoal format /srv/store\n  \
        shoal mount /srv/store /mnt\n  \
        shoal df /mnt\n  \
        shoal umount /mnt\n  \
        shoal check /srv/store",
    propagate_version = true,
    disable_help_subcommand = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a new, empty store
    Format(Box<FormatArgs>),
    /// Mount a store
    Mount(MountArgs),
    /// Unmount a store and wait until it is clean
    Umount(UmountArgs),
    /// Show what a store holds, where, and what a crash may cost
    Df(DfArgs),
    /// Verify a store that is not mounted; exit codes as in fsck(8)
    Check(CheckArgs),
    /// Copy out all that can be read of a damaged store, without changing it
    Salvage(SalvageArgs),
    /// Copy a store that is not mounted to another directory, compactly
    Copy(CopyArgs),
    /// Change the limits of a store, mounted or not
    Resize(ResizeArgs),
    /// Show, add, empty and remove a store's bulk devices, mounted or not
    #[command(subcommand)]
    Bulk(BulkCommand),
    /// Show how a file, or all files of a directory, are stored
    Inspect(InspectArgs),
    /// Pack files and inodes now, also those that changed a moment ago, and compact the memory
    Compact(CompactArgs),
    /// Move files to memory or bulk storage, as the thresholds of their directories say now
    Rebalance(RebalanceArgs),
    /// Read all of bulk storage, and name the files that are not as they were written
    Scrub(ScrubArgs),
    /// Export a block device to NBD clients: a file, or a network RAM disk
    Serve(ServeArgs),
    /// Show a served device, or a store's bulk devices and the kernel's requests to it
    Status(StatusArgs),
    /// Change the donors of a network RAM disk that is served
    #[command(subcommand)]
    Donor(DonorCommand),
    /// Work over a network RAM disk that is served
    #[command(subcommand)]
    Netram(NetramCommand),
    /// Measure small and large file operations in a directory of any file system
    Bench(BenchArgs),
    /// Lend this machine's idle memory to others, over NBD
    Donate(DonateArgs),
    /// Run the papers' experiments and print their figures beside ours
    #[command(disable_help_flag = true)]
    Lab(Words),
    /// Make a profile of a tree: the tables with which inodes like its own are packed
    #[command(disable_help_flag = true)]
    Profile(Words),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man { directory: PathBuf },
    /// Print a completion script for a shell
    Completions { shell: clap_complete::Shell },
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal format /srv/store\n  \
    shoal format --memory-size 4G --bulk-size 100G /srv/store\n  \
    shoal format --memory battery=/dev/shm/store.region --bulk none /srv/store\n  \
    shoal format --bulk nbd://server/disk /srv/store\n  \
    shoal format --profile mail.profile /srv/store\n  \
    shoal format 'netram:hosta:7000,hostb:7000,hostc:7000?policy=adaptive'\n  \
    shoal format --bulk netram:hosta:7000,hostb:7000,hostc:7000 /srv/store\n\n\
    A device that --bulk or --over names is opened, not made: make it first, by a command of its own.\n\
    shoal-serve(1) lists the options of a network RAM disk.")]
pub struct FormatArgs {
    /// Directory that will be the store, made if it does not exist; or vlog:PATH, to make a virtual-log disk; or
    /// netram:DONOR,DONOR,...?OPTIONS, to make a network RAM disk
    pub store: PathBuf,
    /// For vlog:PATH: device below, `file:PATH`, `device:PATH`, an NBD URI or `netram:...` [default: PATH itself]
    ///
    /// With this option PATH becomes a small file that names the device.
    #[arg(long, value_name = "DEVICE", verbatim_doc_comment)]
    pub over: Option<DeviceName>,
    /// For vlog:PATH: size of the file below, which is made
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// For vlog:PATH: part of the device that never holds data; the larger, the less work for the compactor (10 to 90)
    #[arg(long, value_name = "PERCENT", default_value_t = 20)]
    pub spare: u8,
    /// For vlog:PATH: size of the segments that are written and emptied as a whole, a power of two from 128K to 16M
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    pub segment: Size,
    /// Memory that holds metadata and small files: `logged`, `battery=PATH` or `dax=PATH`
    ///
    /// logged: ordinary memory with a log and images in the store. battery: a file on tmpfs or hugetlbfs whose memory
    /// outlives a power loss. dax: a file on persistent memory.
    #[arg(long, value_name = "KIND", default_value = "logged", verbatim_doc_comment)]
    pub memory: MemoryChoice,
    /// Limit of metadata and small files; nothing is set aside [default: half of the memory this process may use]
    #[arg(long, value_name = "SIZE")]
    pub memory_size: Option<Size>,
    /// Where the data of large files goes [default: a file in the store]
    ///
    /// file:PATH: a file or a block device. nbd://HOST/NAME, nbd+unix:///NAME?socket=PATH: an NBD server.
    /// netram:DONOR,DONOR,...?OPTIONS: the memory of other machines. vlog:PATH: a virtual-log disk.
    /// none: nowhere, there are no large files.
    #[arg(long, value_name = "BULK", verbatim_doc_comment)]
    pub bulk: Option<BulkChoice>,
    /// Size of the bulk storage [default: the size of the file system or device that holds it]
    #[arg(long, value_name = "SIZE")]
    pub bulk_size: Option<Size>,
    /// Files longer than this are large (0 to 64M)
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    pub threshold: Size,
    /// How small files that have not changed for a while are compressed: auto, lz4, zstd, zstd:LEVEL (1 to 19) or off.
    /// A file or directory may say otherwise, in the extended attribute `user.shoal.compress`
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    pub compress: Method,
    /// Pack inodes that have not changed for a while with the profiles of FILE, which `shoal profile --out` made of a tree
    /// like the one to come; may be repeated: for each block of inodes the profile that suits it best is used
    /// [default: built-in profiles]
    #[arg(long, value_name = "FILE")]
    pub profile: Vec<PathBuf>,
    /// Keep no checksums of what is on the bulk storage.
    #[arg(long)]
    pub no_sums: bool,
    /// Replace a store or disk that exists: everything in it is lost
    #[arg(long)]
    pub force: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = mount_help())]
pub struct MountArgs {
    /// The store's directory
    pub store: PathBuf,
    /// Directory it is mounted on
    pub mountpoint: PathBuf,
    /// Stay in the foreground and log to standard error
    #[arg(long, short = 'f')]
    pub foreground: bool,
    /// Battery memory: go on from the saved image when the region is gone, older or damaged; later changes are lost
    #[arg(long)]
    pub restore: bool,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
    /// Serve, and tell the parent process through standard output when the mount is ready
    #[arg(long, hide = true)]
    pub report_ready: bool,
}

#[derive(Debug, Args)]
pub struct UmountArgs {
    /// Where the store is mounted
    pub mountpoint: PathBuf,
    /// Detach the mount although it is in use; the store is clean once the last user is gone
    #[arg(long, short = 'l')]
    pub lazy: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DfArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub path: PathBuf,
    /// Also show bytes an inode and an entry, and how small files are packed
    #[arg(long)]
    pub detail: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompactArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// A file or directory within the store
    #[arg(default_value = "/")]
    pub path: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A directory's threshold (setfattr -n user.shoal.threshold -v SIZE DIR) and `-o threshold=SIZE` are for files that will be \
    written. This command applies them to what is there: longer files go to bulk storage, shorter ones come into memory, as long as \
    less of it is in use than `-o spill=PERCENT` says. Files and directories without a threshold of their own get that of the nearest \
    directory above that has one. Contents and times stay, and files may be in use. Stopped (Ctrl-C) it ends behind a file; run again it \
    goes on with the rest."
)]
pub struct RebalanceArgs {
    /// A store, its mount point, or a file or directory within a mount
    #[arg(value_name = "STORE|PATH")]
    pub path: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Large files, and small ones that have spilled, are compared with the checksums of their blocks; blocks without one get one \
    (`shoal format --no-sums` and the mount option `nosums` keep none). Files may be in use. `shoal df` shows when the last scrub ended; \
    the mount option `scrub=DAYS` has one made in idle time.\n\n\
    Exit codes: 0 nothing is damaged, 1 something is, or the scrub could not be done."
)]
pub struct ScrubArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Bulk devices are compared with the store as a mount compares them: one that is another store's, swapped, cut, or older or \
    newer than the rest is an error that --repair leaves; one that cannot be reached is a note.\n\n\
    Exit codes, which add up: 0 no errors, 1 errors were corrected (--repair), 4 errors are left, 8 the check \
    could not be done (for example because the store is mounted), 16 wrong command line."
)]
pub struct CheckArgs {
    /// The store's directory
    pub store: PathBuf,
    /// Make the changes that are safe, and list each before it is made
    ///
    /// Counts are corrected, unreferenced space is freed, entries without an inode are removed, records that do not
    /// decode are freed with their entries, and inodes without an entry are put into lost+found. There are no
    /// questions.
    #[arg(long)]
    pub repair: bool,
    /// Do not verify the checksums of the image's pages and of spilled files
    #[arg(long)]
    pub no_sums: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal copy /srv/store /backup/store\n  \
    shoal copy --memory battery=/dev/shm/copy.region /srv/store /backup/store\n\n\
    Only what is in use is copied, the log is replayed, and the copy is checked before it becomes a store. Large files\n\
    go into a file of the copy, wherever the store has them.")]
pub struct CopyArgs {
    /// The store's directory
    pub store: PathBuf,
    /// Directory of the copy; it is empty or does not exist
    pub new: PathBuf,
    /// Memory of a copy of a battery or dax store: `battery=PATH` or `dax=PATH`
    #[arg(long, value_name = "KIND")]
    pub memory: Option<MemoryChoice>,
    /// Give the copy the store's own uuid; only for a copy that replaces the store
    #[arg(long)]
    pub keep_uuid: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal resize --memory-size 8G /srv/store\n  \
    shoal resize --bulk-size 200G /srv/store\n\n\
    A store that is not mounted can have any size that holds what is in use; a refusal names the smallest. It is checked\n\
    first, and a damaged one is refused as it is. Cut off at any moment, the store has its old or its new sizes.\n\n\
    A mounted store changes its limits at once, up to the sizes it was formatted or last resized with while unmounted.\n\
    `dax` memory has limits of a mounted store only.")]
pub struct ResizeArgs {
    /// The store's directory, or where it is mounted
    pub store: PathBuf,
    /// Limit of metadata and small files
    #[arg(long, value_name = "SIZE")]
    pub memory_size: Option<Size>,
    /// Limit of large files, in a store with one bulk device (see shoal-bulk(1))
    #[arg(long, value_name = "SIZE")]
    pub bulk_size: Option<Size>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum BulkCommand {
    /// Show the bulk devices: size, use, state
    List(BulkListArgs),
    /// Add a device; what is on it is overwritten
    Add(BulkAddArgs),
    /// Move everything off a device, then remove it; cut off, the work goes on at the next mount
    Remove(BulkRemoveArgs),
    /// Call off the removal of a device
    Keep(BulkDeviceArgs),
    /// Use a device again that was lost, or that refuses writes after a failed flush
    Retry(BulkDeviceArgs),
    /// Name the files that have data on a device
    Files(BulkFilesArgs),
}

#[derive(Debug, Args)]
pub struct BulkListArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal bulk add /mnt /dev/sdb\n  \
    shoal bulk add --size 200G /mnt file:/data/more\n  \
    shoal bulk add /mnt nbd://server/disk\n\n\
    New files go to the device with most room, and stay on it while it has some. There is no redundancy: a device that is lost\n\
    costs the files on it, and nothing else. The store keeps a mark on the device, behind its last block.")]
pub struct BulkAddArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// A path, `file:PATH`, `vlog:PATH`, an NBD URI or `netram:...`; a file that is not there is made
    pub device: String,
    /// How much of it to use [default: all of the device, or of the file's file system]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Overwrite what the device holds
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct BulkRemoveArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// Number or name of the device, as `shoal bulk list` has them
    pub device: String,
    /// Do not wait until the device of a mounted store is empty
    #[arg(long)]
    pub background: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct BulkDeviceArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// Number or name of the device, as `shoal bulk list` has them
    pub device: String,
}

#[derive(Debug, Args)]
pub struct BulkFilesArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// Number or name of the device, as `shoal bulk list` has them
    pub device: String,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "What cannot be read is named on standard error: path, bytes, reason. What no name leads to is put into \
    DIR/lost+found.\n\nExit codes: 0 everything was copied, 4 something is lost, 8 nothing could be done."
)]
pub struct SalvageArgs {
    /// The store's directory; it must not be mounted
    pub store: PathBuf,
    /// Directory the files are copied into; it is empty or does not exist
    #[arg(value_name = "DIR")]
    pub target: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "PATH is a path inside the store, such as /src/main.rs; of a mounted store the mount point itself \
    works as STORE."
)]
pub struct InspectArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// Path within the store
    pub path: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal serve file:/srv/disk --nbd unix:/run/disk.sock\n  \
    shoal serve 'netram:hosta:7000,hostb:7000,hostc:7000?policy=adaptive' --nbd 127.0.0.1:10809 --name ram\n\n\
    Options of a network RAM disk, after a `?` and with `&` between them:\n  \
    policy=none|cached|mirrored|basic|logging|caching|adaptive   default adaptive\n  \
    parity=N         donors that may be lost at the same time (1)\n  \
    streams=N        caches for streams of consecutive blocks (2)\n  \
    buffer=N         blocks collected for a donor before they are sent (8)\n  \
    block=SIZE       unit of placement (4K)\n  \
    width=N          donors a group spreads over, parity included (all)\n  \
    spare=PERCENT    room for cleaning (20)\n  \
    size=SIZE        size of the disk (what the donors hold)\n  \
    timeout=MS       what waits in a cache is sent after so long (1000); 0: when the cache is full\n  \
    dedicated-parity=yes, idle-cleaning=no\n  \
    name=NAME, secret=FILE   what donors know this client by\n  \
    tls-certificates=DIR     talk to donors through TLS\n  \
    lost-after=SECONDS       a donor that is away so long is done without (5)\n\n\
    A network RAM disk is made by `shoal format netram:...`; policy to dedicated-parity are its own from then on. A disk that is\n\
    not on its donors any more is an error, never an empty disk.")]
pub struct ServeArgs {
    /// `file:PATH`, an NBD URI, or `netram:DONOR,DONOR,...?OPTIONS`; a donor is `unix:PATH`, `HOST:PORT` or an NBD URI
    pub device: String,
    /// Where to listen: `unix:PATH` or `HOST:PORT`
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Listen,
    /// Name of the export; it is the default one under any name
    #[arg(long, value_name = "EXPORT", default_value = "")]
    pub name: String,
    /// Directory of server-cert.pem and server-key.pem: TLS for every client, with ca-cert.pem also their certificates
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Listen beyond this machine without TLS
    #[arg(long)]
    pub insecure: bool,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Take a network RAM disk from the client that has it open; that client stops
    #[arg(long)]
    pub takeover: bool,
    /// Report the address as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal status unix:/run/disk.sock\n  \
    shoal status --json /mnt\n  \
    shoal status /mnt --watch 5")]
pub struct StatusArgs {
    /// What `shoal serve --nbd` was given on this machine, or a mounted store
    #[arg(value_name = "ADDRESS|STORE|MOUNTPOINT")]
    pub server: String,
    /// Show the requests of a mount each so many seconds, until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub watch: Option<u32>,
    /// Report as JSON; with --watch one line each time
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum DonorCommand {
    /// Take a donor into the disk; its memory is overwritten
    Add(DonorArgs),
    /// Move everything off a donor, then use it no more
    Drain(DonorArgs),
    /// Use a donor no more and rebuild its blocks from the others; blocks that cannot be rebuilt wait for its return
    Lost(DonorArgs),
    /// Give up a donor that will not come back: blocks that only it held are lost, and reads of them fail for ever
    Forget(ForgetArgs),
}

#[derive(Debug, Args)]
pub struct ForgetArgs {
    #[command(flatten)]
    pub of: DonorArgs,
    /// Say what it would cost, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub enum NetramCommand {
    /// Read everything on the donors beside requests, and write anew what is not as it was sent
    Scrub(NetramScrubArgs),
}

#[derive(Debug, Args)]
pub struct NetramScrubArgs {
    /// What `shoal serve --nbd` was given on this machine, or a mounted store
    #[arg(value_name = "ADDRESS|STORE|MOUNTPOINT")]
    pub server: String,
    /// Begin it and return; `shoal status` shows how far it is
    #[arg(long)]
    pub background: bool,
}

#[derive(Debug, Args)]
pub struct DonorArgs {
    /// What `shoal serve --nbd` was given on this machine, or a mounted store
    #[arg(value_name = "ADDRESS|STORE|MOUNTPOINT")]
    pub server: String,
    /// `unix:PATH`, `HOST:PORT` or an NBD URI, as `shoal status` names it
    pub donor: String,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal bench /mnt\n  \
    shoal bench --files 1000 --threads 1,4 --fsync /mnt\n  \
    shoal bench --requests --large 0 /mnt\n\n\
    All files are made in a new directory below DIR, which is removed at the end.")]
pub struct BenchArgs {
    /// A directory of the file system to measure
    pub directory: PathBuf,
    /// Small files per round
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub files: u64,
    /// Size of a small file
    #[arg(long, value_name = "SIZE", default_value = "1K")]
    pub size: Size,
    /// Size of the large file; 0 leaves its measurements out
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub large: Size,
    /// Thread counts of the small-file measurements
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
    /// Also create files with an fsync each, by 1 and by 16 threads
    #[arg(long)]
    pub fsync: bool,
    /// Rounds; medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
    /// Seed of the random order and contents
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Show what the kernel asks of a mounted store for each operation, too
    #[arg(long)]
    pub requests: bool,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal donate --memory 4G --listen unix:/run/shoal-donor\n  \
    shoal donate --memory 16G --area-size 4G --listen 127.0.0.1:10809 --compress lz4\n  \
    shoal donate --memory 8G --listen 0.0.0.0:10809 --tls-certificates /etc/shoal/tls --allow db:/etc/shoal/db.secret\n\n\
    Clients ask for the export NAME, or NAME:SECRET where the name has a secret; without a name they get `default`.\n\
    The metadata context shoal:pressure is 1 while this machine needs its memory itself, and for ten seconds more. A disk\n\
    then moves what is here to its other donors, if it fits there, and comes back when the pressure has ended.\n\
    Stays in the foreground and logs to standard error (SHOAL_LOG=debug makes it talkative); SIGTERM ends it, and\n\
    everything lent is zeroed.")]
pub struct DonateArgs {
    /// Most memory lent to all clients together; it is taken as it is written, not before
    #[arg(long, value_name = "SIZE")]
    pub memory: Size,
    /// Where clients connect: `unix:PATH` or `HOST:PORT`; beyond this machine only with TLS, or --insecure
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Listen,
    /// Size of each name's area [default: all of the memory, for one name at a time]
    #[arg(long, value_name = "SIZE")]
    pub area_size: Option<Size>,
    /// A name that may borrow, and a file whose first line is its secret; may be repeated [default: any name may]
    #[arg(long, value_name = "NAME[:SECRET_FILE]")]
    pub allow: Vec<Allow>,
    /// Compress data that was not written for a while: `none`, `lz4` or `zstd`
    #[arg(long, value_name = "HOW", default_value = "none")]
    pub compress: Compression,
    /// Length of that while; under memory pressure it is 0
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub compress_after: u32,
    /// How long a client's memory is kept after its last connection
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub keep: u64,
    /// After SIGTERM, how long clients may take to move what is here to other donors; a second signal ends it at once
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub hand_over: u64,
    /// Require TLS, with the server-cert.pem and server-key.pem in this directory; with a ca-cert.pem in it clients
    /// must show a certificate signed by it
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Listen beyond this machine without TLS
    #[arg(long)]
    pub insecure: bool,
    /// Memory pressure begins when less than this is available, of the machine's or the control group's memory (percent)
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    pub low_memory: f64,
    /// It also begins when tasks stood still for want of memory for more than this (percent of ten seconds) while less
    /// than four times --low-memory is available
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent)]
    pub memory_stall: f64,
    /// Report readiness as JSON, on one line
    #[arg(long)]
    pub json: bool,
}

/// Returns the text that follows the options of `shoal mount`.
fn mount_help() -> String {
    format!(
        "Options for -o (as in fstab):\n{}\n\nAn fstab line:\n  /srv/store /mnt fuse.shoal noatime,nofail 0 0\n\nThe daemon's log is \
         STORE/shoal.log; SHOAL_LOG=debug makes it talkative.",
        option_table::text()
    )
}

/// What `mount -t fuse.shoal STORE MOUNTPOINT` runs: `mount.fuse.shoal STORE MOUNTPOINT [-sfnv] [-o OPTIONS]`.
#[derive(Debug, Parser)]
#[command(name = "mount.fuse.shoal", version, about = "Mount a store on behalf of mount(8)", after_help = mount_help())]
pub struct MountHelper {
    /// The store's directory
    pub store: PathBuf,
    /// Directory it is mounted on
    pub mountpoint: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Ignore mount options that are not known
    #[arg(short = 's')]
    pub sloppy: bool,
    /// Do everything but the mount itself
    #[arg(short = 'f')]
    pub fake: bool,
    /// Do not write to /etc/mtab, which no system has as a file any more
    #[arg(short = 'n')]
    pub no_mtab: bool,
    /// Say what is done
    #[arg(short = 'v')]
    pub verbose: bool,
    /// The file system type, passed on by mount(8)
    #[arg(short = 't', value_name = "TYPE")]
    pub file_system_type: Option<String>,
}

/// Parses a percentage from the command line.
fn percent(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is no share; write percent from 0 to 100, such as 5 or 2.5");
    let value: f64 = text.strip_suffix('%').unwrap_or(text).parse().map_err(|_| wrong())?;
    if (0.0..=100.0).contains(&value) { Ok(value) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
        MountHelper::command().debug_assert();
    }

    #[test]
    fn format_takes_its_defaults_and_every_option() {
        let Command::Format(args) = Cli::parse_from(["shoal", "format", "/s"]).command else { panic!() };
        assert_eq!((args.memory, args.threshold, args.bulk), (MemoryChoice::LOGGED, Size(1 << 20), None));
        let line = "shoal format --memory battery=/dev/shm/r --memory-size 1G --bulk file:/dev/sdz --bulk-size 2T \
                    --threshold 0 --force --json /s";
        let Command::Format(args) = Cli::parse_from(line.split_whitespace()).command else { panic!() };
        assert_eq!(args.memory, "battery=/dev/shm/r".parse().unwrap());
        assert_eq!(args.bulk, Some(BulkChoice::File("/dev/sdz".into())));
        assert_eq!((args.memory_size, args.bulk_size), (Some(Size(1 << 30)), Some(Size(2 << 40))));
        assert!(args.force && args.json);
    }

    #[test]
    fn wrong_values_are_refused_with_code_2() {
        for line in [
            "shoal format --bulk netram:a:1 /s",
            "shoal format --bulk nbd:/s /s",
            "shoal serve file:/s",
            "shoal format --bulk disk /s",
            "shoal format --memory ram /s",
            "shoal format --bulk file: /s",
        ] {
            let error = Cli::try_parse_from(line.split_whitespace()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn the_mount_helper_takes_the_flags_of_mount() {
        let helper = MountHelper::parse_from(["mount.fuse.shoal", "/s", "/m", "-sv", "-o", "ro,x-a", "-o", "noexec"]);
        assert!(helper.sloppy && helper.verbose && !helper.fake);
        assert_eq!(helper.options, ["ro,x-a", "noexec"]);
        MountHelper::parse_from(["mount.fuse.shoal", "/s", "/m", "-f", "-n", "-t", "fuse.shoal"]);
    }

    #[test]
    fn donate_takes_its_defaults_and_every_option() {
        let line = "shoal donate --memory 1G --listen unix:/s";
        let Command::Donate(args) = Cli::parse_from(line.split_whitespace()).command else { panic!() };
        assert_eq!((args.memory, args.area_size, args.keep), (Size(1 << 30), None, 600));
        assert_eq!((args.compress, args.low_memory, args.memory_stall), (Compression::None, 5.0, 10.0));
        let line = "shoal donate --memory 1G --listen 127.0.0.1:7 --area-size 1M --allow a --allow b:/f --compress zstd \
                    --compress-after 1 --keep 2 --tls-certificates /t --insecure --low-memory 3 --memory-stall 4 --json";
        let Command::Donate(args) = Cli::parse_from(line.split_whitespace()).command else { panic!() };
        assert_eq!((args.allow.len(), args.compress, args.low_memory), (2, Compression::Zstd, 3.0));
        assert!(args.insecure && args.json);
    }

    #[test]
    fn bench_takes_a_list_of_threads() {
        let Command::Bench(args) = Cli::parse_from(["shoal", "bench", "--threads", "1,4,16", "/d"]).command else {
            panic!()
        };
        assert_eq!(args.threads, [1, 4, 16]);
        assert_eq!((args.files, args.rounds), (10_000, 3));
    }

    #[test]
    fn shares_are_percent() {
        assert_eq!(percent("2.5"), Ok(2.5));
        assert_eq!(percent("100%"), Ok(100.0));
        for text in ["", "-1", "101", "NaN", "five"] {
            assert!(percent(text).is_err(), "{text}");
        }
    }
}
