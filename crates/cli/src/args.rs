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
use crate::netram_args::NetramCommand;
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
    /// Make a new, empty store, virtual-log disk or network RAM disk
    Format(Box<FormatArgs>),
    /// Mount a store
    Mount(MountArgs),
    /// Unmount a store and wait until it is clean
    Umount(UmountArgs),
    /// Show the contents and free space of a store, and what a crash may lose
    Df(DfArgs),
    /// Verify a store that is not mounted, and repair it on request; exit codes are those of fsck(8)
    Check(CheckArgs),
    /// Copy everything readable out of a damaged store, without changing it
    Salvage(SalvageArgs),
    /// Make a compact copy of a store that is not mounted
    Copy(CopyArgs),
    /// Change the size limits of a store, mounted or not
    Resize(ResizeArgs),
    /// List, add and remove a store's bulk devices, which hold the data of large files
    #[command(subcommand)]
    Bulk(BulkCommand),
    /// Show how a file, or all files below a directory, are stored
    Inspect(InspectArgs),
    /// Pack (compress) files and inodes now, even recently changed ones, and compact the memory
    Compact(CompactArgs),
    /// Move files between memory and bulk storage, according to the thresholds now in force
    Rebalance(RebalanceArgs),
    /// Read all of bulk storage, verify its checksums, and name the damaged files
    Scrub(ScrubArgs),
    /// Export a device to NBD clients: a file, a block device, a virtual-log disk or a network RAM disk
    Serve(ServeArgs),
    /// Show the state of a served device, or the bulk devices and kernel requests of a mounted store
    Status(StatusArgs),
    /// Change the donors of a network RAM disk that is in use
    #[command(subcommand)]
    Donor(DonorCommand),
    /// Maintain a network RAM disk that is in use
    #[command(subcommand)]
    Netram(NetramCommand),
    /// Look at this machine, and say what keeps Shoal from running, or from running fast
    Doctor(DoctorArgs),
    /// Measure operations on small and large files, in a directory of any file system
    Bench(BenchArgs),
    /// Lend this machine's idle memory to others, over NBD
    Donate(DonateArgs),
    /// Run the experiments of the papers behind Shoal, and print the papers' figures beside ours
    #[command(disable_help_flag = true)]
    Lab(Words),
    /// Make a profile from a directory tree: tables for packing inodes like those in it
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
    A missing file:PATH is created (for --over, add --size). Any other device that --bulk or --over names must exist: make a \
    virtual-log disk or a network RAM disk first, with a command of its own. shoal-serve(1) lists the options of a network RAM \
    disk.")]
pub struct FormatArgs {
    /// Directory of the new store, created if it does not exist; vlog:PATH makes a virtual-log disk instead, and
    /// netram:DONOR,DONOR,...?OPTIONS a network RAM disk
    pub store: PathBuf,
    /// For vlog:PATH: device that holds the disk, named as for --bulk [default: PATH itself]
    ///
    /// With this option, PATH becomes a small file that names the device.
    #[arg(long, value_name = "DEVICE", verbatim_doc_comment)]
    pub over: Option<DeviceName>,
    /// For vlog:PATH: create the file that holds the disk, with this size
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// For vlog:PATH: share of the device kept free of data (10 to 90); a larger share leaves the compactor less work
    #[arg(long, value_name = "PERCENT", default_value_t = 20)]
    pub spare: u8,
    /// For vlog:PATH: size of a segment, which is written and emptied as a whole; a power of two from 128K to 16M
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    pub segment: Size,
    /// Memory that holds metadata and small files: `logged`, `battery=PATH` or `dax=PATH`
    ///
    /// logged: ordinary memory, with a log and images in the store.
    /// battery: a file on tmpfs or hugetlbfs, in memory that survives a power loss.
    /// dax: a file on persistent memory.
    #[arg(long, value_name = "KIND", default_value = "logged", verbatim_doc_comment)]
    pub memory: MemoryChoice,
    /// Most memory for metadata and small files (8M to 1T); none of it is reserved in advance
    /// [default: half of the memory this process may use]
    #[arg(long, value_name = "SIZE")]
    pub memory_size: Option<Size>,
    /// Where the data of large files goes [default: a file in the store]
    #[arg(long, value_name = "BULK", long_help = bulk_help())]
    pub bulk: Option<BulkChoice>,
    /// Size of the bulk storage [default: the size of the file system or device that holds it]
    #[arg(long, value_name = "SIZE")]
    pub bulk_size: Option<Size>,
    /// Files longer than this are large: their data goes to bulk storage (0 to 64M)
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    pub threshold: Size,
    /// How to compress small files that have not changed for a while: auto, lz4, zstd, zstd:LEVEL (1 to 19) or off.
    /// The extended attribute `user.shoal.compress` overrides this for a file, or for new files in a directory
    #[arg(long, value_name = "METHOD", default_value = "auto")]
    pub compress: Method,
    /// Pack inodes that have not changed for a while with the profiles in FILE, made by `shoal profile --out` from a
    /// similar tree. May be repeated: each block of inodes uses the profile that suits it best
    /// [default: built-in profiles]
    #[arg(long, value_name = "FILE")]
    pub profile: Vec<PathBuf>,
    /// Keep no checksums of the data on bulk storage
    #[arg(long)]
    pub no_sums: bool,
    /// Replace an existing store or disk; everything in it is lost
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
    /// Directory to mount it on
    pub mountpoint: PathBuf,
    /// Stay in the foreground and log to standard error
    #[arg(long, short = 'f')]
    pub foreground: bool,
    /// For battery memory: continue from the saved image if the region is gone, older or damaged; changes made after
    /// the image was saved are lost
    #[arg(long)]
    pub restore: bool,
    /// First switch FUSE over io_uring on in the kernel, for all mounts until the next boot (as root; Linux 6.14)
    #[arg(long)]
    pub enable_uring: bool,
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
pub struct DoctorArgs {
    /// Where stores would be made
    #[arg(default_value = ".")]
    pub directory: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct UmountArgs {
    /// Where the store is mounted
    pub mountpoint: PathBuf,
    /// Detach the mount even if it is in use; the store is clean once the last user is gone
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
    /// Also show the bytes per inode and per directory entry, and how small files are packed
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
    after_help = "A directory's threshold (setfattr -n user.shoal.threshold -v SIZE DIR) and `-o threshold=SIZE` apply to files written \
    from then on. This command applies them to existing files. Files longer than their threshold move to bulk storage. The others move \
    into memory, as long as memory use is below the limit that `-o spill=PERCENT` sets. Files and directories without a threshold of \
    their own get that of the nearest directory above that has one. Contents and times do not change, and files may be in use. Ctrl-C \
    stops the command after the current file; the next run continues with the rest."
)]
pub struct RebalanceArgs {
    /// A store, its mount point, or a file or directory in a mounted store
    #[arg(value_name = "STORE|PATH")]
    pub path: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Large files, and small files that have spilled to bulk storage, are compared with the checksums of their blocks. A block \
    without a checksum gets one, unless the store keeps none (`shoal format --no-sums`, mount option `nosums`). Files may be in use. \
    `shoal df` shows when the last scrub ended. With the mount option `scrub=DAYS`, the store scrubs by itself in idle time.\n\n\
    Exit codes: 0 no damage, 1 damage was found, or the scrub failed."
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
    after_help = "Bulk devices are checked as a mount checks them. A device that belongs to another store, is swapped or truncated, or is \
    older or newer than the rest of the store is an error, which --repair cannot correct. A device that cannot be reached is only a \
    note.\n\n\
    Exit codes, which add up: 0 no errors, 1 errors were corrected (--repair), 4 errors are left, 8 the check \
    could not be done (for example because the store is mounted), 16 wrong command line."
)]
pub struct CheckArgs {
    /// The store's directory
    pub store: PathBuf,
    /// Make safe repairs, and list each one before it is made
    ///
    /// Corrects counts, frees unreferenced space, removes directory entries without an inode, frees records that cannot
    /// be decoded and removes their entries, and puts inodes without an entry into lost+found. Asks no questions.
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
    Only space in use is copied. The log is replayed, and the copy is checked before it becomes a store. The data of large \
    files goes into files in the copy's directory, wherever the original keeps it.")]
pub struct CopyArgs {
    /// The store's directory
    pub store: PathBuf,
    /// Directory of the copy; it must be empty or not exist
    pub new: PathBuf,
    /// Memory of the copy, of the original's kind; required if that is battery or dax: `battery=PATH` or `dax=PATH`
    #[arg(long, value_name = "KIND")]
    pub memory: Option<MemoryChoice>,
    /// Give the copy the store's uuid; only for a copy that replaces the store
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
    A store that is not mounted can get any size that holds what is in use; a refusal names the smallest one. The store is checked \
    first, and a damaged store is refused and not changed. If the command is interrupted, the store has its old sizes or its new \
    ones.\n\n\
    A mounted store changes its limits at once, up to the sizes that it got from `shoal format` or from its last resize while not \
    mounted. A store with `dax` memory can be resized only while it is mounted.")]
pub struct ResizeArgs {
    /// The store's directory, or where it is mounted
    pub store: PathBuf,
    /// Limit of metadata and small files
    #[arg(long, value_name = "SIZE")]
    pub memory_size: Option<Size>,
    /// Limit of large files; only for a store with a single bulk device (see shoal-bulk(1))
    #[arg(long, value_name = "SIZE")]
    pub bulk_size: Option<Size>,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum BulkCommand {
    /// List the bulk devices with their size, use and state
    List(BulkListArgs),
    /// Add a device; one that is not empty needs --force, and is overwritten
    Add(BulkAddArgs),
    /// Move all data off a device, then remove it; an interrupted removal continues at the next mount
    Remove(BulkRemoveArgs),
    /// Cancel the removal of a device
    Keep(BulkDeviceArgs),
    /// Use a device again after it was lost, or after a failed flush made it refuse writes
    Retry(BulkDeviceArgs),
    /// List the files that have data on a device
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
    New files go to the device with the most room, and stay on it while it has room. There is no redundancy: if a device is lost, \
    the files on it are lost, and nothing else. The store keeps a mark on each device, behind its last block.")]
pub struct BulkAddArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// A path, or a device named as for `shoal format --bulk`; a missing file is created
    pub device: String,
    /// How much of the device to use [default: all of it; for a new file, the size of the file system that holds it]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Overwrite the data on the device
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct BulkRemoveArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// Number or name of the device, as `shoal bulk list` shows them
    pub device: String,
    /// Return at once, while the daemon of the mounted store empties the device
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
    /// Number or name of the device, as `shoal bulk list` shows them
    pub device: String,
}

#[derive(Debug, Args)]
pub struct BulkFilesArgs {
    /// A store or its mount point
    #[arg(value_name = "STORE|MOUNTPOINT")]
    pub store: PathBuf,
    /// Number or name of the device, as `shoal bulk list` shows them
    pub device: String,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Standard error names everything that cannot be read: path, bytes, reason. Files without a name go to \
    DIR/lost+found.\n\nExit codes: 0 everything was copied, 4 something is lost, 8 nothing could be done."
)]
pub struct SalvageArgs {
    /// The store's directory; it must not be mounted
    pub store: PathBuf,
    /// Directory to copy the files into; it must be empty or not exist
    #[arg(value_name = "DIR")]
    pub target: PathBuf,
    /// Report as JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "PATH begins at the root of the store: write /src/main.rs for the file src/main.rs below the mount point."
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
    policy=none|cached|mirrored|basic|logging|caching|adaptive   how blocks are protected (adaptive)\n  \
    parity=N         donors that may be lost at the same time (1)\n  \
    streams=N        caches for streams, the one for other blocks included (2)\n  \
    buffer=N         blocks collected for a donor before they are sent (8)\n  \
    block=SIZE       unit of placement (4K)\n  \
    width=N          donors a group spreads over, parity included (all)\n  \
    spare=PERCENT    room for cleaning (20)\n  \
    size=SIZE        size of the disk (all that the donors can hold)\n  \
    dedicated-parity=yes|no  keep parity on the last donors, instead of rotating it (no)\n  \
    timeout=MS       longest wait of a block in a cache (1000); 0: until the cache is full, or a flush\n  \
    idle-cleaning=yes|no     clean in idle gaps, not only when space is short (yes)\n  \
    checkpoints=yes|no       keep a map on the donors, so that a large disk opens in seconds (yes); decided when it is made\n  \
    uuid=UUID        the disk that must be there (any)\n  \
    name=NAME, secret=FILE   name of this client at the donors, and the file with its secret\n  \
    key=FILE         encrypt what donors hold with this key, 64 hexadecimal digits; decided when the disk is made\n  \
    tls-certificates=DIR     connect to donors with TLS\n  \
    lost-after=SECONDS       a donor that is away this long counts as lost (5)\n\n\
    `shoal format netram:...` makes a network RAM disk, which keeps the values of policy to dedicated-parity from then on. If the \
    donors no longer hold the disk, opening it is an error; it never becomes an empty disk.")]
pub struct ServeArgs {
    /// A device named as for `shoal format --bulk`; a donor is `unix:PATH`, `HOST:PORT` or an NBD URI
    pub device: String,
    /// Where to listen: `unix:PATH` or `HOST:PORT`
    #[arg(long, value_name = "ADDRESS")]
    pub nbd: Listen,
    /// Name of the export; clients that ask for no name get it, too
    #[arg(long, value_name = "EXPORT", default_value = "")]
    pub name: String,
    /// Require TLS, with the server-cert.pem and server-key.pem in this directory; with a ca-cert.pem in it, clients
    /// must show a certificate signed by it
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Accept clients from other machines without TLS
    #[arg(long)]
    pub insecure: bool,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Take over a network RAM disk from the client that has it open; that client stops
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
    /// The address given to `shoal serve --nbd` on this machine, or a mounted store
    #[arg(value_name = "ADDRESS|STORE|MOUNTPOINT")]
    pub server: String,
    /// Show the kernel's requests to a mounted store every SECONDS seconds (1 if not given), until interrupted
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1",
        value_parser = clap::value_parser!(u32).range(1..=86400))]
    pub watch: Option<u32>,
    /// Report as JSON; with --watch, one line for each interval
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Subcommand)]
pub enum DonorCommand {
    /// Add a donor, or take back one that was given up; the memory of a new donor is overwritten
    Add(DonorArgs),
    /// Move everything off a donor in the background, then stop using it
    Drain(DonorArgs),
    /// Stop using a donor and rebuild its blocks from the others; blocks that cannot be rebuilt wait for its return
    Lost(DonorArgs),
    /// Give up a donor that will not come back; blocks that only it held are lost, and reading them fails
    Forget(ForgetArgs),
}

#[derive(Debug, Args)]
pub struct ForgetArgs {
    #[command(flatten)]
    pub of: DonorArgs,
    /// Show what would be lost, and change nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct DonorArgs {
    /// The address given to `shoal serve --nbd` on this machine, or a mounted store
    #[arg(value_name = "ADDRESS|STORE|MOUNTPOINT")]
    pub server: String,
    /// The donor: `unix:PATH`, `HOST:PORT` or an NBD URI, with `@NAME` if it shares a failure domain; `shoal status` lists those in use
    pub donor: String,
}

#[derive(Clone, Debug, Args)]
#[command(after_help = "Examples:\n  \
    shoal bench /mnt\n  \
    shoal bench --files 1000 --threads 1,4 --fsync /mnt\n  \
    shoal bench --requests --large 0 /mnt\n\n\
    All files are made in a new directory below DIRECTORY, which is removed at the end.")]
pub struct BenchArgs {
    /// A directory of the file system to measure
    pub directory: PathBuf,
    /// Small files per round
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    pub files: u64,
    /// Size of a small file
    #[arg(long, value_name = "SIZE", default_value = "1K")]
    pub size: Size,
    /// Size of the large file; 0 skips its measurements
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    pub large: Size,
    /// Thread counts of the small-file measurements
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1")]
    pub threads: Vec<usize>,
    /// Also measure creating files with an fsync each, with 1 and with 16 threads
    #[arg(long)]
    pub fsync: bool,
    /// Number of rounds; medians are reported
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
    /// Seed for the random order and contents
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Also show the kernel's requests for each operation; DIRECTORY must be in a mounted store
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
    A client asks for the export NAME, or NAME:SECRET if the name has a secret; without a name it gets `default`.\n\n\
    The metadata context shoal:pressure is 1 while this machine needs its memory itself, and for ten seconds more. A network RAM \
    disk then moves its blocks to its other donors, if they fit there, and uses this donor again when the pressure has ended.\n\n\
    The command stays in the foreground and logs to standard error (SHOAL_LOG=debug makes the log verbose). SIGTERM ends it, and all \
    lent memory is zeroed.")]
pub struct DonateArgs {
    /// Most memory to lend to all clients together; it is allocated when clients write to it
    #[arg(long, value_name = "SIZE")]
    pub memory: Size,
    /// Where clients connect: `unix:PATH` or `HOST:PORT`; an address beyond this machine needs TLS or --insecure
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Listen,
    /// Memory that each name gets [default: all of the memory, so only one name at a time]
    #[arg(long, value_name = "SIZE")]
    pub area_size: Option<Size>,
    /// A name that may borrow, optionally with a file whose first line is its secret; may be repeated
    /// [default: any name may borrow]
    #[arg(long, value_name = "NAME[:SECRET_FILE]")]
    pub allow: Vec<Allow>,
    /// How to compress data that has not been written for a while: `none`, `lz4` or `zstd`
    #[arg(long, value_name = "HOW", default_value = "none")]
    pub compress: Compression,
    /// Time since the last write after which data is compressed; 0 under memory pressure
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub compress_after: u32,
    /// How long to keep a client's memory after its last connection has ended
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub keep: u64,
    /// How long clients may take, after SIGTERM, to move their data to other donors; a second signal ends the wait
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    pub hand_over: u64,
    /// Require TLS, with the server-cert.pem and server-key.pem in this directory; with a ca-cert.pem in it, clients
    /// must show a certificate signed by it
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Accept clients from other machines without TLS
    #[arg(long)]
    pub insecure: bool,
    /// Memory pressure begins when less than this share of the machine's or the control group's memory is available
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = percent)]
    pub low_memory: f64,
    /// Memory pressure also begins when tasks stalled for lack of memory for more than this share of the last ten
    /// seconds, while less than four times --low-memory is available
    #[arg(long, value_name = "PERCENT", default_value = "10", value_parser = percent)]
    pub memory_stall: f64,
    /// Report readiness as JSON, on one line
    #[arg(long)]
    pub json: bool,
}

/// Returns the long help of `shoal format --bulk`.
fn bulk_help() -> String {
    format!(
        "Where the data of large files goes [default: a file in the store]\n\n{}none: nowhere; all files stay in \
         memory, whatever their size.",
        shoal_devices::about_forms()
    )
}

/// Returns the text that follows the options of `shoal mount`.
fn mount_help() -> String {
    format!(
        "Options for -o (as in fstab):\n{}\n\nAn fstab line:\n  /srv/store /mnt fuse.shoal noatime,nofail 0 0\n\nThe daemon's log is \
         STORE/shoal.log; SHOAL_LOG=debug makes it verbose.",
        option_table::text()
    )
}

/// What `mount -t fuse.shoal STORE MOUNTPOINT` runs: `mount.fuse.shoal STORE MOUNTPOINT [-sfnv] [-o OPTIONS]`.
#[derive(Debug, Parser)]
#[command(name = "mount.fuse.shoal", version, about = "Mount a store on behalf of mount(8)", after_help = mount_help())]
pub struct MountHelper {
    /// The store's directory
    pub store: PathBuf,
    /// Directory to mount it on
    pub mountpoint: PathBuf,
    /// Mount options, separated by commas
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Ignore mount options that are unknown or invalid
    #[arg(short = 's')]
    pub sloppy: bool,
    /// Do everything but the mount itself
    #[arg(short = 'f')]
    pub fake: bool,
    /// Do not write to /etc/mtab; accepted and ignored, because Shoal never does
    #[arg(short = 'n')]
    pub no_mtab: bool,
    /// Report the mount when it is ready
    #[arg(short = 'v')]
    pub verbose: bool,
    /// The file system type, which mount(8) passes on; ignored
    #[arg(short = 't', value_name = "TYPE")]
    pub file_system_type: Option<String>,
}

/// Parses a percentage from the command line.
fn percent(text: &str) -> Result<f64, String> {
    let wrong = || format!("`{text}` is not a percentage; write a number from 0 to 100, such as 5 or 2.5");
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
