//! The two images of a region at rest, as files in the store's directory.
//!
//! Left out: which of the two is current (`shoal_region`).

use std::sync::Arc;

use shoal_devices::{During, Failure, Outcome};
use shoal_host::{Access, Directory, HostImage};
use shoal_media::ImageFile;

use crate::names::IMAGES;

/// Opens the images of the store in `directory`.
pub fn open(directory: &Directory, access: Access) -> Outcome<[Arc<HostImage>; 2]> {
    let store = directory.display();
    let open = |name| {
        HostImage::open_in(directory, name, access).map(Arc::new).map_err(|error| {
            Failure::new("image", error)
                .remedy(format!("bring it back; `shoal salvage {store} DIR` copies out what the other image holds"))
        })
    };
    Ok([open(IMAGES[0])?, open(IMAGES[1])?])
}

/// Creates empty images.
pub fn create(directory: &Directory) -> Outcome<[Arc<HostImage>; 2]> {
    let create = |name| HostImage::create_in(directory, name).map(Arc::new).during("image");
    Ok([create(IMAGES[0])?, create(IMAGES[1])?])
}

/// Returns the images in the form that the engine takes.
pub fn shared(images: &[Arc<HostImage>; 2]) -> [Arc<dyn ImageFile>; 2] {
    [images[0].clone(), images[1].clone()]
}
