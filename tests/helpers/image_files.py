"""Small image files in every layout that the loaders know."""

import io

import numpy as np


def picture(seed, size=(8, 6)):
    """Random pixels."""
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def encode(pixels, kind="PNG", **options):
    """Pixels as the bytes of an image file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def dicom(pixels, **fields):
    """Grey pixels in uint16 as the bytes of a DICOM file."""
    import pydicom
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    made = pydicom.Dataset()
    made.file_meta = pydicom.dataset.FileMetaDataset()
    made.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    made.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    made.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    made.Rows, made.Columns = pixels.shape[-2:]
    made.SamplesPerPixel, made.PhotometricInterpretation = 1, "MONOCHROME2"
    made.BitsAllocated = made.BitsStored = 16
    made.HighBit, made.PixelRepresentation, made.PixelData = 15, 0, pixels.tobytes()
    for name, value in fields.items():
        setattr(made, name, value)
    file = io.BytesIO()
    made.save_as(file, enforce_file_format=True)
    return file.getvalue()


def pack(path, seeds, numbers, **changes):
    """A packed file of random images; returns the encoded images. ``changes`` replace arrays."""
    blobs = [encode(picture(s), "WEBP", lossless=True) for s in seeds]
    arrays = {
        "blob": np.frombuffer(b"".join(blobs), np.uint8),
        "offsets": np.cumsum([0, *map(len, blobs)]),
        "labels": np.array(numbers, np.uint8),
        "classes": np.array(["ant", "bee", "cat"]),
    }
    np.savez(path, **{k: v for k, v in {**arrays, **changes}.items() if v is not None})
    return blobs


def cifar_arrays(n, seed):
    """Random rows and fine labels."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 256, (n, 3072), dtype=np.uint8)
    return rows, rng.integers(0, 100, n)


def write_binary(folder):
    """A folder ``cifar-100-binary``."""
    folder.mkdir(parents=True, exist_ok=True)
    for part, n in (("train", 5), ("test", 3)):
        rows, fine = cifar_arrays(n, n)
        records = np.column_stack([np.zeros(n), fine, rows]).astype(np.uint8)
        (folder / f"{part}.bin").write_bytes(records.tobytes())


def write_folder(root):
    """A folder of images: three per class for training and one for validation."""
    for part, n in (("train", 3), ("val", 1)):
        for k, name in enumerate(("cat", "dog")):
            (root / part / name).mkdir(parents=True)
            for i in range(n):
                (root / part / name / f"{i}.PNG").write_bytes(encode(picture(10 * k + i)))
    return root
